// Where the taps of a node and slot stand in its list, for the next slots of a tile's nodes; in shared memory.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/lanes.h"
#include "hopper/node_lists.h"
#include "hopper/sorted_rounds.h"

namespace knnconv::hopper {

inline constexpr int kSortThreads = SortedRound::kRows;  // a list each

namespace internal {

constexpr int kSortedSlots = 32;  // that have cells at a time: one for each lane
constexpr int kEntries = 3840;    // of the tile's lists, that find room
constexpr int kWarps = kSortThreads / gpu::kGroupLanes;
constexpr int kOwnRows = SortedRound::kRows / gpu::kGroupLanes;  // of a lane: 4 * lane + i

// Where a cell's taps begin in the list, and above 8 bits how many follow the first.
constexpr uint32_t kNoTaps = 0xffff;
constexpr int kCountShift = 8;
static_assert(gpu::kHubTaps <= 1 << kCountShift, "no cell is taken for an empty one");
constexpr uint32_t kNone = 0xffffffff;  // in the place of a slot

// Over the warp, in the absence of an instruction for it.
template <typename Fold>
KNNCONV_DEVICE int FoldWarp(int value, const Fold& fold) {
  const int lane = threadIdx.x % gpu::kGroupLanes;
  for (int step = gpu::kGroupLanes / 2; step > 0; step /= 2) {
    value = fold(value, gpu::GroupShuffle(value, lane ^ step, gpu::kGroupLanes));
  }
  return value;
}

KNNCONV_DEVICE int WarpSum(int value) {
#if defined(__CUDA_ARCH__)
  return __reduce_add_sync(~0u, value);
#else
  return FoldWarp(value, [](int a, int b) { return a + b; });
#endif
}

KNNCONV_DEVICE int WarpMax(int value) {
#if defined(__CUDA_ARCH__)
  return __reduce_max_sync(~0u, value);
#else
  return FoldWarp(value, [](int a, int b) { return max(a, b); });
#endif
}

// A node's sources, in shared memory or in the table.
struct SourceList {
  const int32_t* sources;
  int32_t batch_rows;  // as a TapList's
};

}  // namespace internal

// Of those who sort, in shared memory.
struct SortRoom {
  uint4 sources[internal::kEntries / 4];
  uint16_t cell[internal::kSortedSlots][SortedRound::kRows];
  internal::SourceList list[internal::kOwnRows][gpu::kGroupLanes];
  int64_t begin;                           // of the first node's list
  int32_t rounds[internal::kSortedSlots];  // of each slot
  uint32_t unwritten[4];
  int32_t end;        // of the sources, counted from their first block
  int32_t next_slot;  // the complement of the least slot beyond those that have cells
};

namespace internal {

// A thread on its way through a node's list, whose slots ascend.
template <typename Plan>
class ListWalker {
 public:
  KNNCONV_DEVICE ListWalker(const Plan& plan, SortRoom& room, const TapList& list)
      : plan_(plan), room_(room), list_(list), thread_(threadIdx.x % kSortThreads),
        entries_(plan.groups.taps * (plan.groups.count - 1) + plan.gemm.table.taps) {}

  // Says where each node's sources are: in shared memory where its list lies close behind the first one.
  KNNCONV_DEVICE void PlaceSources() {
    const int64_t begin = list_.begin - Origin();
    const bool is_near = begin >= 0 && begin + list_.count <= kEntries;
    const int32_t* const near_sources = reinterpret_cast<const int32_t*>(room_.sources);
    const int32_t* const sources = is_near ? near_sources + begin : plan_.gemm.table.sources + list_.begin;
    room_.list[thread_ % kOwnRows][thread_ / kOwnRows] = {sources, list_.batch_rows};
    if (is_near && list_.count > 0) atomicMax(&room_.end, static_cast<int>(begin) + list_.count);
  }

  // Copies them, once all threads have placed theirs: a piece of the table, since lists follow each other.
  KNNCONV_DEVICE void FetchSources() const {
    const int64_t origin = Origin();
    const int32_t* const table = plan_.gemm.table.sources + origin;
    const int end = room_.end;
    for (int at = thread_ * kBlock; at < end; at += kSortThreads * kBlock) {
      if (entries_ - origin - at >= kBlock) {
        gpu::CopyAsync16(&room_.sources[at / kBlock], table + at, true);
      } else {  // the table's last block
        int32_t* const to = reinterpret_cast<int32_t*>(&room_.sources[at / kBlock]);
        for (int i = 0; i < static_cast<int>(entries_ - origin - at); ++i) to[i] = table[at + i];
      }
    }
    gpu::CommitCopies();
  }

  // Notes the cells of the thread's node, of slots [first_slot, first_slot + kSortedSlots). Returns the next slot that
  // its list has, or INT_MAX.
  KNNCONV_DEVICE int32_t Walk(int32_t first_slot) {
#pragma unroll
    for (auto& cells : room_.cell) cells[thread_] = kNoTaps;
    const int skew = static_cast<int>(list_.begin % kBlock), end = skew + list_.count, begin = skew + place_;
    if (begin == end) return INT_MAX;
    const auto left = static_cast<uint32_t>(end - begin);
    const bool covers_all = plan_.gemm.slots - first_slot <= kSortedSlots;
    uint16_t* const own = &room_.cell[0][thread_];
    uint32_t cell = 0, last_slot = kSortedSlots;
    int32_t next_slot = INT_MAX;
    int at = begin / kBlock * kBlock;
    uint4 four[kBlocksAtOnce], next[kBlocksAtOnce];
    Read(at, end, four);
KNNCONV_ROLLED
    while (at < end && next_slot == INT_MAX) {
      Read(at + kBlocksAtOnce * kBlock, end, next);  // under way meanwhile
      const uint32_t from_begin = at - begin, from_list = at - skew;
#pragma unroll
      for (int i = 0; i < kBlocksAtOnce * kBlock; ++i) {
        const uint32_t slots[4] = {four[i / 4].x, four[i / 4].y, four[i / 4].z, four[i / 4].w};
        const uint32_t slot = from_begin + i < left ? slots[i % 4] - static_cast<uint32_t>(first_slot) : kNone;
        cell = slot == last_slot ? cell + (1u << kCountShift) : from_list + i;
        if (slot < kSortedSlots) own[slot * SortedRound::kRows] = static_cast<uint16_t>(cell);
        last_slot = slot;
      }
#pragma unroll
      for (int i = 0; i < kBlocksAtOnce; ++i) four[i] = next[i];
      at += kBlocksAtOnce * kBlock;
      if (!covers_all) next_slot = FindNext(first_slot, max(at - kBlocksAtOnce * kBlock, begin) - skew, at - skew);
    }
    if (next_slot == INT_MAX) place_ = list_.count;
    return next_slot;
  }

 private:
  static constexpr int kBlock = 4, kBlocksAtOnce = 4;  // entries of 16 bytes; blocks of a list that are read together

  // The table's entry that is the first in shared memory.
  KNNCONV_DEVICE int64_t Origin() const { return room_.begin / kBlock * kBlock; }

  // The first slot that has no cell now, of the list's entries [from, to), where the next cells begin; or INT_MAX.
  KNNCONV_DEVICE int32_t FindNext(int32_t first_slot, int from, int to) {
    const int32_t* const slots = plan_.gemm.table.slots + list_.begin;
    to = min(to, list_.count);
    if (slots[to - 1] - first_slot < kSortedSlots) return INT_MAX;
    for (place_ = from; slots[place_] - first_slot < kSortedSlots; ++place_) {
    }
    return slots[place_];
  }

  // Slots of the list's entries, counted from its first block, from `at` on.
  KNNCONV_DEVICE void Read(int at, int end, uint4 (&blocks)[kBlocksAtOnce]) const {
    const int64_t begin = list_.begin / kBlock * kBlock;
    const int32_t* const slots = plan_.gemm.table.slots + begin;
    const int whole = static_cast<int>(min((entries_ - begin) / kBlock * kBlock, int64_t{INT_MAX}));
#pragma unroll
    for (int i = 0; i < kBlocksAtOnce; ++i, at += kBlock) {
      blocks[i] = make_uint4(0, 0, 0, 0);
      if (at >= end) continue;
      if (at < whole) {
        blocks[i] = gpu::ReadOnly(reinterpret_cast<const uint4*>(slots + at));
      } else {  // the table's last block
        const int entries = end - at;
        blocks[i].x = static_cast<uint32_t>(slots[at]);
        if (entries > 1) blocks[i].y = static_cast<uint32_t>(slots[at + 1]);
        if (entries > 2) blocks[i].z = static_cast<uint32_t>(slots[at + 2]);
      }
    }
  }

  const Plan& plan_;
  SortRoom& room_;
  const TapList list_;
  const int thread_;
  const int64_t entries_;  // of the table, of all groups
  int place_ = 0;          // of the list's first tap that has had no cell yet
};

}  // namespace internal
}  // namespace knnconv::hopper
