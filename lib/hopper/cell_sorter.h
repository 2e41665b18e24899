// Sorts the taps of a tile's nodes by slot, as a warpgroup.
//
// Each thread walks over one node's list. Beginning with the least slot that some thread has next, a few slots are
// sorted at a time: the taps that a consuming warpgroup's 64 nodes have of a slot are numbered node by node, and each
// becomes a line of a stage.
#pragma once

#include <cstdint>

#include "hopper/cell_pipe.h"
#include "hopper/slot_sorter.h"

namespace knnconv::hopper {

// One of the bytes of a word.
KNNCONV_DEVICE int Byte(uint32_t bytes, int at) { return static_cast<int>(bytes >> 8 * at & 0xff); }

template <typename Shape>
class CellSorter : public SlotSorter<Shape, CellTable<Shape>> {
  using Base = SlotSorter<Shape, CellTable<Shape>>;

 public:
  KNNCONV_DEVICE CellSorter(const TapPlan& plan, CellTable<Shape>& table, const TileWalk<Shape>& walk)
      : Base(plan, table, walk), half_(thread_ / Shape::kHalfRows) {}

  KNNCONV_DEVICE bool LayOut(CellBatch<Shape>& batch) {
    const int32_t slot = LeastSlot();
    if (slot < plan_.gemm.slots) {
      Sort(slot, batch);
    } else {
      batch.span[0][thread_] = {0, 0};
      if (thread_ % Shape::kHalfRows == 0) batch.lines[half_] = 0;
      if (thread_ == 0) {
        batch.live = 1;
        batch.first_slot = gpu::kHole;
      }
      more_ = false;
    }
    EndBatch(batch);
    if (thread_ == 0) batch.more = more_;
    return !more_;
  }

 private:
  using Base::kBarrier, Base::plan_, Base::table_, Base::thread_, Base::reader_, Base::more_;
  using Base::EndBatch, Base::Half, Base::LeastSlot, Base::PublishNextSlot, Base::SumUpToLane;

  // Gives lines to the nodes' taps of slots [first_slot, first_slot + kSlots), or fewer slots where a thread does not
  // see its taps of all of them. The last slot's lines may be fewer than its taps; then more of it follow.
  KNNCONV_DEVICE void Sort(int32_t first_slot, CellBatch<Shape>& batch) {
    constexpr int kSlots = Shape::kSlots, kWindow = Shape::Reader::kWindow, kMostLine = 128;
    static_assert(kSlots == 4 && kWindow * Shape::kHalfRows < 1 << 16);
    static_assert(Shape::kLines <= kMostLine && kMostLine + kWindow < 256);
    const int lane = thread_ % 32;
    reader_.Prepare(kWindow);
    const int begin = reader_.first(), seen_end = reader_.end();
    uint32_t own = 0;  // taps of each slot, a byte each
    int end = kSlots;
#pragma unroll
    for (int block = 0; block < kWindow / 4; ++block) {
      const int4 four = reader_.Slots(block);
      const int32_t slots[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * block + j;
        const auto slot = static_cast<uint32_t>(slots[j] - first_slot);
        if (at >= begin && at < seen_end && slot < kSlots) own += 1u << 8 * slot;
      }
      if (block == kWindow / 4 - 1 && begin + reader_.left() > kWindow) end = min(kSlots, slots[3] - first_slot + 1);
    }
    const int own_taps = Byte(own, 0) + Byte(own, 1) + Byte(own, 2) + Byte(own, 3);

    const uint32_t pairs[2] = {(own & 0xff) | (own & 0xff00) << 8, (own >> 16 & 0xff) | (own >> 24) << 16};
    uint32_t sum[2] = {pairs[0], pairs[1]};
    SumUpToLane(sum);
    const int warp_end = __reduce_min_sync(kAllLanes, end);
    const bool warp_more = __any_sync(kAllLanes, own_taps < reader_.left());
    if (lane == 31) table_.note[thread_ / 32] = {{sum[0], sum[1]}, warp_end, warp_more};
    SyncThreads(kBarrier, 128);

    bool more = false;
    end = kSlots;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      end = min(end, table_.note[w].end);
      more |= table_.note[w].more;
    }
    uint32_t next_line = 0, half_lines = 0, live = 0;
    int taken = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (i >= end) break;
      const int lower = TapsOf(0, i) + TapsOf(1, i), upper = TapsOf(2, i) + TapsOf(3, i);
      const int lines = min(half_ == 0 ? lower : upper, Shape::kLines);
      const int before = (thread_ % Shape::kHalfRows >= 32 ? TapsOf(2 * half_, i) : 0) + Half(sum, i) - Half(pairs, i);
      const int first = min(before, kMostLine), count = max(0, min(Byte(own, i), Shape::kLines - first));
      batch.span[i][thread_] = {static_cast<uint8_t>(first), static_cast<uint8_t>(count)};
      next_line |= static_cast<uint32_t>(first) << 8 * i;
      half_lines |= static_cast<uint32_t>(lines) << 8 * i;
      taken += count;
      if (lower + upper > 0) live |= 1u << 8 * i;
      if (max(lower, upper) > Shape::kLines) {
        end = i + 1;
        more = true;
      }
    }
    if (thread_ % Shape::kHalfRows == 0) batch.lines[half_] = half_lines;
    if (thread_ == 0) {
      batch.live = live;
      batch.first_slot = first_slot;
    }
    more_ = more;

    const int32_t batch_rows = reader_.list().batch_rows;
    int32_t* const sources = reinterpret_cast<int32_t*>(batch.source[0][half_]);
#pragma unroll
    for (int block = 0; block < kWindow / 4; ++block) {
      const int4 four_slots = reader_.Slots(block), four_sources = reader_.Sources(block);
      const int32_t slots[4] = {four_slots.x, four_slots.y, four_slots.z, four_slots.w};
      const int32_t rows[4] = {four_sources.x, four_sources.y, four_sources.z, four_sources.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * block + j;
        const auto slot = static_cast<uint32_t>(slots[j] - first_slot);
        if (at < begin || at >= seen_end || slot >= static_cast<uint32_t>(end)) continue;
        const auto line = static_cast<uint32_t>(Byte(next_line, static_cast<int>(slot)));
        next_line += 1u << 8 * slot;
        if (line >= Shape::kLines) continue;
        constexpr int kOfSlot = Shape::kConsumers * Shape::kLines, kOfThread = Shape::kLines / kLinesAtOnce;
        sources[slot * kOfSlot + line % kLinesAtOnce * kOfThread + line / kLinesAtOnce] = batch_rows + rows[j];
      }
    }
    reader_.Advance(taken);
    PublishNextSlot();
  }

  // Taps that a warp has of slot i of those that are sorted.
  KNNCONV_DEVICE int TapsOf(int warp, int i) const {
    return Half(table_.note[warp].taps, i);
  }

  const int half_;
};

}  // namespace knnconv::hopper
