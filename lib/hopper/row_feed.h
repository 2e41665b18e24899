// The producers of tiles whose rows are different nodes: a warpgroup that gathers source rows one by one.
//
// Each thread walks over the list of taps of one row of the tile. The least slot that a row has next makes a layer:
// rows with that slot give their tap, the others zeros, and the tile is multiplied with the slot's weight once. A node
// with several taps of a slot takes as many layers; where slots are columns, layers are columns. Slots ascend.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/lanes.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

// Of the producers, in shared memory.
struct RowTable {
  // The source row of each row of the tile, batch entries included, or -1: of the layer that is being built, the one
  // that waits to be loaded, and the one that threads may still be loading.
  int64_t source[3][kBoxRows];
  int32_t least_slot[2][4];  // of each warp's rows; calls take turns
};

template <typename Shape>
class RowFeeder {
 public:
  KNNCONV_DEVICE RowFeeder(const TapPlan& plan, const Pipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), table_(*reinterpret_cast<RowTable*>(pipe.Rows())),
        thread_(threadIdx.x % 128), steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth) {
    static_assert(sizeof(RowTable) <= Shape::kRowBytes && Shape::kRows == kBoxRows);
  }

  KNNCONV_DEVICE void Run() {
    Row row = Open(0);
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const Row after = Open(turn + 1);  // its loads are under way while this tile is fed
      Feed(walk_.Tile(turn), row);
      row = after;
    }
    gpu::WaitForCopies<0>();
  }

 private:
  static constexpr int kBarrier = 1;  // of the producers
  static constexpr int kNone = -1;

  struct Tap {
    int32_t slot, source;
  };

  // A row of the tile and how far its list is walked.
  struct Row {
    int64_t begin;       // of the list
    int64_t batch_rows;  // source rows before those of its batch entry
    int count, at;
    Tap next, ahead;  // taps `at` and `at + 1`
    bool hub;
  };

  KNNCONV_DEVICE Tap TapOf(const Row& row, int at) const {
    if (at >= row.count) return {INT_MAX, gpu::kHole};
    const gpu::TapGemm& gemm = plan_.gemm;
    return {gemm.kind == gpu::Taps::kColumns ? at : gemm.table.slots[row.begin + at],
            gemm.table.sources[row.begin + at]};
  }

  KNNCONV_DEVICE Row Open(int64_t turn) const {
    const gpu::TapGemm& gemm = plan_.gemm;
    Row row{};
    if (!walk_.Has(turn)) return row;
    const gpu::Split place = gpu::Divide(walk_.Tile(turn).row_tile * Shape::kRows + thread_, gemm.batch);
    if (place.quotient < gemm.nodes) {
      row.batch_rows = place.remainder * gemm.source_rows;
      row.begin = place.quotient * gemm.table.columns;
      row.count = gemm.table.columns;
      if (gemm.kind == gpu::Taps::kSources) {
        row.begin = gpu::SourceOffset(gemm.table.offsets, place.quotient);
        const int64_t count = gpu::SourceOffset(gemm.table.offsets, place.quotient + 1) - row.begin;
        row.hub = count > gpu::kHubTaps;
        row.count = row.hub ? 0 : static_cast<int>(count);
      }
    }
    row.next = TapOf(row, 0);
    row.ahead = TapOf(row, 1);
    return row;
  }

  KNNCONV_DEVICE void Advance(Row* row) const {
    ++row->at;
    row->next = row->ahead;
    row->ahead = TapOf(*row, row->at + 1);
  }

  // The least of the threads' slots.
  KNNCONV_DEVICE int32_t LeastSlot(int32_t slot) {
    slot = __reduce_min_sync(kAllLanes, slot);
    turn_ ^= 1;
    int32_t(&least)[4] = table_.least_slot[turn_];
    if (thread_ % 32 == 0) least[thread_ / 32] = slot;
    SyncThreads(kBarrier, 128);
    return min(min(least[0], least[1]), min(least[2], least[3]));
  }

  KNNCONV_DEVICE void Feed(const TapTile& tile, Row row) {
    const gpu::TapGemm& gemm = plan_.gemm;
    const bool by_column = gemm.kind == gpu::Taps::kColumns;
    bool alive = false;
    int held = kNone, held_slot = gpu::kHole;  // the last live layer, which waits to know whether it is the tile's last
    for (int column = 0;; ++column) {
      const int32_t slot = by_column ? column : LeastSlot(row.next.slot);
      const bool ends = slot >= gemm.slots;
      if (ends && held != kNone) break;
      const bool takes = !ends && row.next.slot == slot;
      const bool valid = takes && slot >= 0 && gpu::IsRow(row.next.source, gemm.source_rows);
      table_.source[fresh_][thread_] = valid ? row.batch_rows + row.next.source : int64_t{gpu::kHole};
      alive |= valid;
      if (takes) Advance(&row);
      const bool live = SyncAny(kBarrier, 128, valid);
      if (!live && !ends) continue;
      if (held != kNone) LoadLayer(tile, held, held_slot, false, row, alive);
      held = fresh_;
      held_slot = ends ? gpu::kHole : slot;  // a tile without taps has one layer, of zeros
      fresh_ = (fresh_ + 1) % 3;
      if (ends) break;
    }
    LoadLayer(tile, held, held_slot, true, row, alive);
  }

  // Loads the steps of a layer.
  KNNCONV_DEVICE void LoadLayer(const TapTile& tile, int layer, int slot, bool last, const Row& row, bool alive) {
    constexpr int kChunk = 8, kThreadsOfRow = kStepDepth / kChunk, kRowsAtOnce = 128 / kThreadsOfRow;
    const int chunk = thread_ % kThreadsOfRow, first = thread_ / kThreadsOfRow;
    const char* from[kBoxRows / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kBoxRows / kRowsAtOnce; ++i) {
      const int64_t source = table_.source[layer][first + i * kRowsAtOnce];
      const int64_t element = source * plan_.gemm.depth + chunk * kChunk;
      from[i] = source < 0 ? nullptr : static_cast<const char*>(plan_.gemm.source) + element * 2;
    }
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      if (ends) {
        const uint32_t unwritten = __ballot_sync(kAllLanes, row.hub);
        const uint32_t dead = __ballot_sync(kAllLanes, plan_.gemm.zero_empty_rows && !alive);
        if (thread_ % 32 == 0) pipe_.Marks(stage, thread_ / 32) = {unwritten, dead};
      }
      if (thread_ == 0) {
        pipe_.Note(stage) = StepNote{ends, false, 0, 0}.Pack();
        pipe_.Full(stage).ArriveExpecting(Shape::kBytesB);
        LoadWeights<Shape>(plan_, pipe_.B(stage), &pipe_.Full(stage), tile.first_column, channel, slot);
      } else if (thread_ % 32 == 0) {
        pipe_.Full(stage).Arrive();
      }
      const bool in_depth = channel + chunk * kChunk < plan_.gemm.depth;
      const uint32_t to = SharedAddress(pipe_.A(stage));
#pragma unroll
      for (int i = 0; i < kBoxRows / kRowsAtOnce; ++i) {
        const int line = first + i * kRowsAtOnce;
        const bool exists = in_depth && from[i] != nullptr;
        const void* chunk_from = exists ? from[i] + channel * 2 : plan_.gemm.source;
        CopyChunk(to + line * 128 + ((chunk ^ line % 8) << 4), chunk_from, exists);
      }
      pipe_.Full(stage).ArriveAfterCopies();
      place_.Advance();
    }
  }

  const TapPlan& plan_;
  const Pipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  RowTable& table_;
  const int thread_, steps_;
  typename Pipe<Shape>::Place place_;
  int fresh_ = 0;  // layer of the table that is free
  int turn_ = 0;
};

}  // namespace knnconv::hopper
