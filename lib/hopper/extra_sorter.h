// Sorts the taps of a tile's nodes by slot, as a warpgroup.
//
// Each thread walks over one node's list. Beginning with the least slot that some thread has next, a few slots are
// sorted at a time: the first tap that a node has of a slot becomes the node's row, and all others are numbered node by
// node as extra lines.
#pragma once

#include <cstdint>

#include "hopper/extra_pipe.h"
#include "hopper/slot_sorter.h"

namespace knnconv::hopper {

template <typename Shape>
class ExtraSorter : public SlotSorter<Shape, ExtraTable<Shape>> {
  using Base = SlotSorter<Shape, ExtraTable<Shape>>;

 public:
  KNNCONV_DEVICE ExtraSorter(const TapPlan& plan, ExtraTable<Shape>& table, const TileWalk<Shape>& walk)
      : Base(plan, table, walk) {}

  KNNCONV_DEVICE bool LayOut(ExtraBatch<Shape>& batch) {
    const int32_t slot = LeastSlot();
    if (slot < plan_.gemm.slots) {
      Sort(slot, batch);
    } else {
      batch.span[0][thread_] = {0, 0};
      *RowOf(batch, 0) = gpu::kHole;
      if (thread_ < Shape::kSlots) batch.lines[thread_] = thread_ == 0 ? 0 : -1;
      if (thread_ == 0) batch.first_slot = gpu::kHole;
      last_ = 0;
      more_ = false;
    }
    EndBatch(batch);
    if (thread_ == 0) batch.last = more_ ? -1 : last_;
    return !more_;
  }

 private:
  using Base::kBarrier, Base::plan_, Base::table_, Base::thread_, Base::reader_, Base::more_;
  using Base::EndBatch, Base::Half, Base::LeastSlot, Base::PublishNextSlot, Base::SumUpToLane;

  // Gives lines to the nodes' taps of slots [first_slot, first_slot + kSlots), or fewer slots where a thread does not
  // see its taps of all of them. The last slot's lines may be fewer than its taps; then more of it follow.
  KNNCONV_DEVICE void Sort(int32_t first_slot, ExtraBatch<Shape>& batch) {
    constexpr int kSlots = Shape::kSlots, kPairs = kSlots / 2, kWindow = Shape::Reader::kWindow;
    static_assert(kSlots == 8 && kWindow < 256 && kWindow * 128 < 1 << 16);
    const int lane = thread_ % 32, warp = thread_ / 32;
    reader_.Prepare(kWindow);
    const int begin = reader_.first(), seen_end = reader_.end();
    uint64_t own = 0;  // taps of each slot, a byte each
    int own_taps = 0, end = kSlots;
#pragma unroll
    for (int block = 0; block < kWindow / 4; ++block) {
      const int4 four = reader_.Slots(block);
      const int32_t slots[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * block + j;
        const auto slot = static_cast<uint32_t>(slots[j] - first_slot);
        if (at >= begin && at < seen_end && slot < kSlots) {
          own += uint64_t{1} << 8 * slot;
          ++own_taps;
        }
      }
      // There may be more taps of the last slot that is seen.
      if (block == kWindow / 4 - 1 && begin + reader_.left() > kWindow) {
        end = min(kSlots, max(slots[3] - first_slot, 1));
      }
    }

    uint32_t pairs[kPairs], sum[kPairs], own_live = 0;  // extra taps, 16 bits each; a bit for each slot with taps
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const auto two = static_cast<uint32_t>(own >> 16 * i);
      const uint32_t counts[2] = {two & 0xff, two >> 8 & 0xff};
      own_live |= (counts[0] > 0 ? 1u : 0) << 2 * i | (counts[1] > 0 ? 2u : 0) << 2 * i;
      sum[i] = pairs[i] = max(counts[0], 1u) - 1 | (max(counts[1], 1u) - 1) << 16;
    }
    SumUpToLane(sum);
    const int warp_end = __reduce_min_sync(kAllLanes, end);
    const bool warp_more = __any_sync(kAllLanes, own_taps < reader_.left());
    const uint32_t warp_live = __reduce_or_sync(kAllLanes, own_live);
    if (lane == 31) table_.note[warp] = {{sum[0], sum[1], sum[2], sum[3]}, warp_live, warp_end, warp_more};
    SyncThreads(kBarrier, 128);

    // Lane 8 * w + i adds up what warps 0 to w have of slot i.
    const ExtraNote& note = table_.note[lane / kSlots];
    const int taps = Half(note.taps, lane % kSlots);
    int up_to = taps;
#pragma unroll
    for (int step = kSlots; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, up_to, step);
      if (lane >= step) up_to += before;
    }
    end = __reduce_min_sync(kAllLanes, note.end);
    const uint32_t live = __reduce_or_sync(kAllLanes, note.live);
    bool more = __any_sync(kAllLanes, note.more);
    int taken = 0;
    last_ = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int all = __shfl_sync(kAllLanes, up_to, 3 * kSlots + i);
      const int before = __shfl_sync(kAllLanes, up_to - taps, warp * kSlots + i);
      const bool exists = i < end && (live >> i & 1) != 0;
      if (thread_ == i) batch.lines[i] = exists ? min(all, Shape::kLines) : -1;
      if (!exists) continue;
      const int own_extra = Half(pairs, i), place = min(before + Half(sum, i) - own_extra, Shape::kLines);
      const int count = min(own_extra, Shape::kLines - place);
      const bool has_row = (own_live >> i & 1) != 0;
      batch.span[i][thread_] = {static_cast<uint8_t>(place), static_cast<uint8_t>(count)};
      if (!has_row) *RowOf(batch, i) = gpu::kHole;
      taken += count + (has_row ? 1 : 0);
      last_ = i;
      if (all > Shape::kLines) {
        end = i + 1;
        more = true;
      }
    }
    if (thread_ == 0) batch.first_slot = first_slot;
    more_ = more;

    const int32_t batch_rows = reader_.list().batch_rows;
    uint32_t last_slot = kSlots;
    int rank = 0;  // among the taps of its slot
#pragma unroll
    for (int block = 0; block < kWindow / 4; ++block) {
      const int4 four_slots = reader_.Slots(block), four_sources = reader_.Sources(block);
      const int32_t slots[4] = {four_slots.x, four_slots.y, four_slots.z, four_slots.w};
      const int32_t rows[4] = {four_sources.x, four_sources.y, four_sources.z, four_sources.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * block + j;
        const auto slot = static_cast<uint32_t>(slots[j] - first_slot);
        const bool takes = at >= begin && at < seen_end && slot < static_cast<uint32_t>(end);
        rank = takes && slot == last_slot ? rank + 1 : 0;
        last_slot = takes ? slot : kSlots;
        if (!takes) continue;
        if (rank == 0) {
          *RowOf(batch, slot) = batch_rows + rows[j];
        } else {
          const int line = batch.span[slot][thread_].first + rank - 1;
          if (line < Shape::kLines) *LineOf(batch, slot, line) = batch_rows + rows[j];
        }
      }
    }
    reader_.Advance(taken);
    PublishNextSlot();
  }

  // Source rows of the thread's node and of an extra line.
  KNNCONV_DEVICE int32_t* RowOf(ExtraBatch<Shape>& batch, uint32_t slot) const {
    return reinterpret_cast<int32_t*>(batch.row[slot][thread_ % kExtraAtOnce]) + thread_ / kExtraAtOnce;
  }
  KNNCONV_DEVICE static int32_t* LineOf(ExtraBatch<Shape>& batch, uint32_t slot, int line) {
    return reinterpret_cast<int32_t*>(batch.line[slot][line % kExtraAtOnce]) + line / kExtraAtOnce;
  }

  int last_ = 0;  // of the slots that were sorted, the last with taps
};

}  // namespace knnconv::hopper
