// What warpgroups share that sort the taps of a tile's nodes by slot, a few slots at a time.
//
// Each thread walks over one node's list. What is sorted begins with the least slot that some thread has next.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/lanes.h"
#include "hopper/tap_reader.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

// Table: what the producers have in shared memory. A lister for batch_ring.h, but for LayOut.
template <typename Shape, typename Table>
class SlotSorter {
 public:
  KNNCONV_DEVICE void Begin(int64_t turn) {
    if (turn == 0) reader_.Open(ListAt(plan_, walk_, 0, thread_));
    reader_.Enter();
    next_ = ListAt(plan_, walk_, turn + 1, thread_);
    is_first_ = true;
    PublishNextSlot();
  }

  KNNCONV_DEVICE void EndRound() { reader_.EndRound(); }

  KNNCONV_DEVICE void Finish() const { gpu::WaitForCopies<0>(); }

 protected:
  static constexpr int kBarrier = 1;  // of this warpgroup

  KNNCONV_DEVICE SlotSorter(const TapPlan& plan, Table& table, const TileWalk<Shape>& walk)
      : plan_(plan), walk_(walk), table_(table), thread_(threadIdx.x % 128),
        reader_(plan.gemm, table.reader, thread_) {}

  // Tells the warpgroup the thread's next slot, and gets all in step.
  KNNCONV_DEVICE void PublishNextSlot() {
    reader_.Prepare(1);
    const int32_t slot = reader_.left() > 0 ? reader_.Slot(0) : INT_MAX;
    __syncwarp();
    const int32_t least = __reduce_min_sync(kAllLanes, slot);
    turn_ ^= 1;
    if (thread_ % 32 == 0) table_.least_slot[turn_][thread_ / 32] = least;
    SyncThreads(kBarrier, 128);
  }

  // The least slot that was published; beyond all slots where there is none.
  KNNCONV_DEVICE int32_t LeastSlot() const {
    const int32_t(&least)[4] = table_.least_slot[turn_];
    return min(min(least[0], least[1]), min(least[2], least[3]));
  }

  // After a batch's slots: which rows are not written.
  template <typename Batch>
  KNNCONV_DEVICE void EndBatch(Batch& batch) {
    if (is_first_) reader_.Open(next_);  // whose loads are under way while this tile is sorted
    is_first_ = false;
    const uint32_t unwritten = __ballot_sync(kAllLanes, reader_.list().hub);
    if (thread_ % 32 == 0) batch.unwritten[thread_ / 32] = unwritten;
  }

  // Sums of 16-bit numbers, in pairs, over the warp's lanes up to each.
  template <int kPairs>
  KNNCONV_DEVICE static void SumUpToLane(uint32_t (&pairs)[kPairs]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
      for (uint32_t& pair : pairs) {
        const uint32_t before = __shfl_up_sync(kAllLanes, pair, step);
        if (lane >= step) pair += before;
      }
    }
  }

  // One of 16-bit numbers, in pairs.
  template <int kPairs>
  KNNCONV_DEVICE static int Half(const uint32_t (&pairs)[kPairs], int at) {
    return static_cast<int>(pairs[at / 2] >> 16 * (at % 2) & 0xffff);
  }

  const TapPlan& plan_;
  const TileWalk<Shape>& walk_;
  Table& table_;
  const int thread_;
  typename Shape::Reader reader_;
  bool more_ = false;  // whether taps of the tile follow

 private:
  TapList next_{};
  bool is_first_ = true;  // of the tile's batches, the next one
  int turn_ = 0;
};

}  // namespace knnconv::hopper
