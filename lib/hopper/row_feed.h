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
#include "hopper/tap_reader.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

using RowReader = TapReader<128, 2>;

// Of the producers, in shared memory; layers take turns.
struct RowTable {
  int32_t source[2][kBoxRows];  // the source row of each row of the tile, batch entries included, or -1
  int32_t least_slot[2][4];     // of each warp's rows
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
      Feed(walk_.Tile(turn), Next(turn + 1));  // whose loads are under way in the first round
    }
    gpu::WaitForCopies<0>();
  }

 private:
  static constexpr int kBarrier = 1;  // of the producers

  KNNCONV_DEVICE TapList Next(int64_t turn) const {
    return walk_.Has(turn) ? ListOf(plan_.gemm, walk_.Tile(turn).row_tile * Shape::kRows + thread_) : TapList{};
  }

  // The slot of the row's next tap, past holes; beyond all slots where there is none.
  KNNCONV_DEVICE int32_t NextSlot() {
    const bool by_column = plan_.gemm.kind == gpu::Taps::kColumns;
    for (; reader_.left() > 0; reader_.Advance(1)) {
      reader_.Prepare(1);
      const int32_t slot = by_column ? reader_.at() : reader_.Slot(0);
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

  KNNCONV_DEVICE void Feed(const TapTile& tile, const TapList& next) {
    bool alive = false;
    // The last layer found waits to know whether it is the tile's last. A tile without taps has one, of zeros.
    int held_slot = gpu::kHole;
    for (int layer = 0;; ++layer) {
      const int32_t own_slot = NextSlot();
      __syncwarp();
      const int32_t slot = LeastSlot(own_slot);
      const bool ends = slot >= plan_.gemm.slots;
      if (ends || layer > 0) LoadLayer(tile, held_slot, ends, alive);
      if (layer == 0) reader_.Open(next);
      if (ends) return;
      const bool takes = own_slot == slot;
      table_.source[turn_][thread_] = takes ? reader_.list().batch_rows + reader_.Source(0) : gpu::kHole;
      if (takes) reader_.Advance(1);
      alive |= takes;
      held_slot = slot;
      reader_.EndRound();
    }
  }

  // Loads the steps of the layer before this turn; zeros if its slot is a hole.
  KNNCONV_DEVICE void LoadLayer(const TapTile& tile, int slot, bool last, bool alive) {
    constexpr int kChunk = 8, kThreadsOfRow = kStepDepth / kChunk, kRowsAtOnce = 128 / kThreadsOfRow;
    const int chunk = thread_ % kThreadsOfRow, first = thread_ / kThreadsOfRow;
    const char* from[kBoxRows / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kBoxRows / kRowsAtOnce; ++i) {
      const int64_t source = slot < 0 ? gpu::kHole : table_.source[turn_ ^ 1][first + i * kRowsAtOnce];
      const int64_t element = source * plan_.gemm.depth + chunk * kChunk;
      from[i] = source < 0 ? nullptr : static_cast<const char*>(plan_.gemm.source) + element * 2;
    }
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      if (ends) {
        const uint32_t unwritten = __ballot_sync(kAllLanes, reader_.list().hub);
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
  RowReader reader_;
  typename Pipe<Shape>::Place place_;
  int turn_ = 0;
};

}  // namespace knnconv::hopper
