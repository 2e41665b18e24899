// Lays out the layers of tiles whose rows are different nodes, as a warpgroup.
//
// Each thread walks over the list of taps of one row of the tile. The least slot that a row has next makes a layer. A
// node with several taps of a slot takes as many layers; where slots are columns, layers are columns. Slots ascend.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/lanes.h"
#include "hopper/row_table.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

template <typename Shape>
class RowLister {
 public:
  KNNCONV_DEVICE RowLister(const TapPlan& plan, RowTable& table, const TileWalk<Shape>& walk)
      : plan_(plan), walk_(walk), table_(table), thread_(threadIdx.x % 128), reader_(plan.gemm, table.reader, thread_) {
    static_assert(Shape::kRows == kBoxRows);
  }

  static constexpr int kBarrier = 1;  // of this warpgroup

  // As batch_ring.h says.
  KNNCONV_DEVICE void Begin(int64_t turn) {
    if (turn == 0) reader_.Open(ListAt(plan_, walk_, 0, thread_));
    reader_.Enter();
    next_ = ListAt(plan_, walk_, turn + 1, thread_);
    column_ = 0;
    alive_ = false;
  }

  KNNCONV_DEVICE bool LayOut(RowBatch& batch) {
    const bool ends = plan_.gemm.kind == gpu::Taps::kColumns ? LayOutColumns(batch) : LayOutLists(batch);
    if (column_ == 0) reader_.Open(next_);  // whose loads are under way while this tile is laid out
    column_ += kLayers;
    const uint32_t unwritten = __ballot_sync(kAllLanes, reader_.list().hub);
    const uint32_t dead = __ballot_sync(kAllLanes, plan_.gemm.zero_empty_rows && !alive_);
    if (thread_ % 32 == 0) batch.marks[thread_ / 32] = {unwritten, dead};
    if (thread_ == 0) batch.ends = ends;
    return ends;
  }

  KNNCONV_DEVICE void EndRound() { reader_.EndRound(); }

  KNNCONV_DEVICE void Finish() const { gpu::WaitForCopies<0>(); }

 private:
  // The thread's row in a layer.
  KNNCONV_DEVICE int32_t& RowOf(RowBatch& batch, int layer) const {
    return batch.source[layer][thread_ % 16][thread_ / 16];
  }

  KNNCONV_DEVICE bool LayOutColumns(RowBatch& batch) {
    reader_.Prepare(kLayers);
    const int32_t batch_rows = reader_.list().batch_rows;
    uint32_t live = 0;
#pragma unroll
    for (int layer = 0; layer < kLayers; ++layer) {
      const int32_t source = layer < reader_.left() ? reader_.Source(layer) : gpu::kHole;
      const bool is_row = gpu::IsRow(source, plan_.gemm.source_rows);
      RowOf(batch, layer) = is_row ? batch_rows + source : gpu::kHole;
      alive_ |= is_row;
      if (__any_sync(kAllLanes, is_row)) live |= 1u << layer;
    }
    reader_.Advance(min(kLayers, reader_.left()));
    if (thread_ % 32 == 0) batch.live[thread_ / 32] = live;
    if (thread_ < kLayers) batch.slot[thread_] = column_ + thread_;
    return column_ + kLayers >= plan_.gemm.table.columns;
  }

  KNNCONV_DEVICE bool LayOutLists(RowBatch& batch) {
    uint32_t live = 0;
    bool ends = false;
#pragma unroll 1
    for (int layer = 0; layer < kLayers; ++layer) {
      const int32_t own_slot = NextSlot();
      __syncwarp();
      const int32_t slot = LeastSlot(own_slot);
      ends = slot >= plan_.gemm.slots;
      if (ends) break;
      const bool takes = own_slot == slot;
      RowOf(batch, layer) = takes ? reader_.list().batch_rows + reader_.Source(0) : gpu::kHole;
      if (takes) reader_.Advance(1);
      if (thread_ == 0) batch.slot[layer] = slot;
      alive_ |= takes;
      live |= 1u << layer;
    }
    if (thread_ % 32 == 0) batch.live[thread_ / 32] = live;
    return ends;
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

  const TapPlan& plan_;
  const TileWalk<Shape>& walk_;
  RowTable& table_;
  const int thread_;
  RowReader reader_;
  TapList next_{};
  int column_ = 0;      // of a table without slots: the next one
  bool alive_ = false;  // whether the thread's row has taps
  int turn_ = 0;
};

}  // namespace knnconv::hopper
