// The producers of tiles whose rows are different nodes: a warpgroup that gathers source rows one by one.
//
// Each thread walks over the list of taps of one row of the tile. The least slot that a row has next makes a layer:
// rows with that slot give their tap, the others zeros, and the tile is multiplied with the slot's weight once. A node
// with several taps of a slot takes as many layers; where slots are columns, layers are columns. Slots ascend. A few
// layers are laid out at a time: what bounds this warpgroup is the latency of its own instructions.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/lanes.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_reader.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

using RowReader = TapReader<128, 2>;

inline constexpr int kLayers = 4;  // that are laid out at a time
static_assert(kLayers <= RowReader::kMostAhead);

// Of the producers, in shared memory: layers that are laid out, those before them, of which the last may have to be
// loaded, and those before these, which threads may still be loading.
struct RowTable {
  // The source row of each row of the tile, batch entries included, or -1: rows of one loading thread together.
  int32_t source[3][kLayers][16][kBoxRows / 16];
  int32_t slot[3][kLayers];
  uint32_t live[3][4];       // of each warp's rows, a bit for each layer in which one has a tap
  int32_t least_slot[2][4];  // of each warp's rows; calls take turns
  RowReader::Room reader;
};

template <typename Shape>
class RowFeeder {
 public:
  KNNCONV_DEVICE RowFeeder(const TapPlan& plan, const Pipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), table_(*reinterpret_cast<RowTable*>(pipe.Rows())),
        thread_(threadIdx.x % 128), steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth),
        reader_(plan.gemm, table_.reader, thread_) {
    static_assert(sizeof(RowTable) <= Shape::kRowBytes && Shape::kRows == kBoxRows);
  }

  KNNCONV_DEVICE void Run() {
    reader_.Open(Next(0));
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      reader_.Enter();
      Feed(walk_.Tile(turn), Next(turn + 1));  // whose loads are under way while the first layers are laid out
    }
    gpu::WaitForCopies<0>();
  }

 private:
  static constexpr int kBarrier = 1;  // of the producers

  // Layers that were laid out.
  struct Layout {
    uint32_t live;  // a bit for each that has taps
    bool ends;      // none follow
  };

  // A layer that waits to know whether it is the tile's last.
  struct Held {
    int part, layer, slot;
  };

  KNNCONV_DEVICE TapList Next(int64_t turn) const {
    if (!walk_.Has(turn)) return TapList{};
    const TapTile tile = walk_.Tile(turn);
    return ListOf(plan_, tile, tile.row_tile * Shape::kRows + thread_);
  }

  KNNCONV_DEVICE void Feed(const TapTile& tile, const TapList& next) {
    const bool by_column = plan_.gemm.kind == gpu::Taps::kColumns;
    Held held{0, 0, gpu::kHole};  // a tile without taps has one layer, of zeros
    alive_ = false;
    for (int column = 0;; column += kLayers) {
      part_ = part_ == 2 ? 0 : part_ + 1;
      const Layout layout = by_column ? LayOutColumns(column) : LayOutLists();
      if (column == 0) reader_.Open(next);
#pragma unroll 1
      for (uint32_t live = layout.live; live != 0; live &= live - 1) {
        if (held.slot >= 0) LoadLayer(tile, held, false);
        const int layer = __ffs(static_cast<int>(live)) - 1;
        held = {part_, layer, by_column ? column + layer : table_.slot[part_][layer]};
      }
      if (layout.ends) break;
    }
    LoadLayer(tile, held, true);
  }

  // The thread's row in a layer.
  KNNCONV_DEVICE int32_t& RowOf(int layer) const { return table_.source[part_][layer][thread_ % 16][thread_ / 16]; }

  KNNCONV_DEVICE Layout LayOutColumns(int column) {
    reader_.Prepare(kLayers);
    const int32_t batch_rows = reader_.list().batch_rows;
    uint32_t live = 0;
#pragma unroll
    for (int layer = 0; layer < kLayers; ++layer) {
      const int32_t source = layer < reader_.left() ? reader_.Source(layer) : gpu::kHole;
      const bool is_row = gpu::IsRow(source, plan_.gemm.source_rows);
      RowOf(layer) = is_row ? batch_rows + source : gpu::kHole;
      alive_ |= is_row;
      if (__any_sync(kAllLanes, is_row)) live |= 1u << layer;
    }
    reader_.Advance(min(kLayers, reader_.left()));
    uint32_t(&parts)[4] = table_.live[part_];
    if (thread_ % 32 == 0) parts[thread_ / 32] = live;
    SyncThreads(kBarrier, 128);
    return {parts[0] | parts[1] | parts[2] | parts[3], column + kLayers >= plan_.gemm.table.columns};
  }

  KNNCONV_DEVICE Layout LayOutLists() {
    Layout layout{0, false};
#pragma unroll 1
    for (int layer = 0; layer < kLayers; ++layer) {
      const int32_t own_slot = NextSlot();
      __syncwarp();
      const int32_t slot = LeastSlot(own_slot);
      layout.ends = slot >= plan_.gemm.slots;
      if (layout.ends) break;
      const bool takes = own_slot == slot;
      RowOf(layer) = takes ? reader_.list().batch_rows + reader_.Source(0) : gpu::kHole;
      if (takes) reader_.Advance(1);
      if (thread_ == 0) table_.slot[part_][layer] = slot;
      alive_ |= takes;
      layout.live |= 1u << layer;
    }
    SyncThreads(kBarrier, 128);
    return layout;
  }

  // The slot of the row's next tap, past holes; beyond all slots where there is none.
  KNNCONV_DEVICE int32_t NextSlot() {
    for (; reader_.left() > 0; reader_.Advance(1)) {
      reader_.Prepare(1);
      const int32_t slot = reader_.Slot(0);
      if (slot >= 0 && gpu::IsRow(reader_.Source(0), plan_.gemm.source_rows)) return slot;
    }
    return INT_MAX;
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

  // Loads the steps of a layer; zeros if its slot is a hole.
  KNNCONV_DEVICE void LoadLayer(const TapTile& tile, const Held& held, bool last) {
    constexpr int kChunk = 8, kThreadsOfRow = kStepDepth / kChunk, kRowsAtOnce = 128 / kThreadsOfRow;
    constexpr int kRowsOfThread = kBoxRows / kRowsAtOnce;
    static_assert(kRowsAtOnce == 16 && kRowsOfThread == 8);
    const int chunk = thread_ % kThreadsOfRow, first = thread_ / kThreadsOfRow;
    const int32_t row_bytes = plan_.gemm.depth * 2;
    union {
      int4 four[kRowsOfThread / 4];
      int32_t one[kRowsOfThread];
    } source;
    const int4* const rows = reinterpret_cast<const int4*>(table_.source[held.part][held.layer][first]);
    source.four[0] = rows[0];
    source.four[1] = rows[1];
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      if (ends) {
        const uint32_t unwritten = __ballot_sync(kAllLanes, reader_.list().hub);
        const uint32_t dead = __ballot_sync(kAllLanes, plan_.gemm.zero_empty_rows && !alive_);
        if (thread_ % 32 == 0) pipe_.Marks(stage, thread_ / 32) = {unwritten, dead};
      }
      if (thread_ == 0) {
        pipe_.Note(stage) = StepNote{ends, false, 0, 0}.Pack();
        pipe_.Full(stage).ArriveExpecting(Shape::kBytesB);
        LoadWeights<Shape>(plan_, pipe_.B(stage), &pipe_.Full(stage), tile, channel, held.slot);
      } else if (thread_ % 32 == 0) {
        pipe_.Full(stage).Arrive();
      }
      const bool in_depth = held.slot >= 0 && channel + chunk * kChunk < plan_.gemm.depth;
      const char* const from = static_cast<const char*>(plan_.gemm.source) + (channel + chunk * kChunk) * 2;
      // Rows 8 apart have the same swizzle.
      const uint32_t to = SharedAddress(pipe_.A(stage)) + first * 128 + ((chunk ^ first % 8) << 4);
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const bool exists = in_depth && source.one[i] >= 0;
        CopyChunk(to + i * kRowsAtOnce * 128, RowAt(from, source.one[i], row_bytes), exists);
      }
      pipe_.Full(stage).ArriveAfterCopies();
      place_.Advance();
    }
    reader_.EndRound();
  }

  const TapPlan& plan_;
  const Pipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  RowTable& table_;
  const int thread_, steps_;
  RowReader reader_;
  typename Pipe<Shape>::Place place_;
  bool alive_ = false;  // whether the thread's row has taps
  int part_ = 0;        // of the table
  int turn_ = 0;
};

}  // namespace knnconv::hopper
