// A warpgroup sorts the taps of a tile's 128 nodes by slot.
//
//     cell (slot, node) = where the node's taps of the slot begin in its list, and how many they are
//     for each slot with taps: its rounds, with as many lines each as there is room for
//
// A *cell* takes 16 bits of shared memory. Each thread walks over one node's list, whose slots ascend, and notes its
// cells of the next 32 slots; then each warp takes a round, adds up the slot's lines node by node, and lays it out,
// while the other warps lay out the next ones. Lists of neighbouring nodes are one piece of the table, unless hubs' lie
// between: the sources arrive in shared memory while threads walk. Counted in machine code, a tile of 27 slots with a
// tap each takes about 12,000 instructions of a warp. Runs on the CPU as well
// (tests/gpu/emulation/check_tile_sorter.cc).
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/lanes.h"
#include "hopper/tile_cells.h"

namespace knnconv::hopper {

// Plan: as node_lists.h says. Rounds: where they go, for each warp, which has every fourth of all tiles' rounds.
// Begin() is the place of the warp's next round, End() ends it, EndTile(count) the tile; Sync() gets all threads in
// step.
template <typename Plan, typename Rounds>
class TileSorter {
  using Order = RoundOrder;
  static constexpr int kWarps = internal::kWarps, kOwnRows = internal::kOwnRows;
  static constexpr int kSortedSlots = internal::kSortedSlots, kCountShift = internal::kCountShift;

 public:
  // `rounds`: for Rounds to be made of.
  template <typename Ring>
  KNNCONV_DEVICE TileSorter(const Plan& plan, SortRoom& room, Ring& rounds)
      : plan_(plan), room_(room), rounds_(rounds), thread_(threadIdx.x % kSortThreads),
        warp_(thread_ / gpu::kGroupLanes), lane_(thread_ % gpu::kGroupLanes) {}

  // Sorts a tile whose node of this thread has `list`.
  KNNCONV_DEVICE void Sort(const TapList& list) {
    const uint32_t unwritten = gpu::GroupBallot(list.hub, gpu::kGroupLanes);
    if (lane_ == 0) room_.unwritten[warp_] = unwritten;
    if (thread_ == 0) {
      room_.begin = list.begin;
      room_.end = 0;
      room_.next_slot = INT_MIN;
    }
    Rounds::Sync();
    internal::ListWalker<Plan> walker(plan_, room_, list);
    walker.PlaceSources();
    Rounds::Sync();
    walker.FetchSources();
    int32_t count = 0, first_slot = 0;
    while (first_slot != INT_MAX) {
      const int32_t own_next = walker.Walk(first_slot);
      if (own_next != INT_MAX) atomicMax(&room_.next_slot, ~own_next);
      gpu::WaitForCopies<0>();
      Rounds::Sync();
      const int32_t next_slot = ~room_.next_slot;
      for (int slot = warp_; slot < kSortedSlots; slot += kWarps) CountRounds(slot);
      Rounds::Sync();
      if (thread_ == 0) room_.next_slot = INT_MIN;
      count = LayOutSlots(first_slot, count, next_slot == INT_MAX);
      first_slot = next_slot;
      Rounds::Sync();
    }
    if (count == 0) {
      if (FirstRound(0) == 0) LayOutNothing();
      Rounds::Sync();
    }
    before_ = (before_ + max(count, 1)) % kWarps;
    rounds_.EndTile(max(count, 1));
  }

 private:
  // Of the lane's nodes, their taps of a slot.
  struct Cells {
    int first[kOwnRows], taps[kOwnRows];
  };
  KNNCONV_DEVICE Cells CellsOf(int slot) const {
    static_assert(kOwnRows == 4);
    const uint2 four = reinterpret_cast<const uint2*>(room_.cell[slot])[lane_];
    Cells cells;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const uint32_t cell = (i < 2 ? four.x : four.y) >> 16 * (i % 2) & 0xffff;
      cells.first[i] = static_cast<int>(cell & ((1u << kCountShift) - 1));
      cells.taps[i] = cell == internal::kNoTaps ? 0 : static_cast<int>(cell >> kCountShift) + 1;
    }
    return cells;
  }

  // Lines of the lane's nodes.
  KNNCONV_DEVICE static int OwnLines(const Cells& cells, int rounds) {
    int lines = 0;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) lines += cells.taps[i] - Order::RowsOf(cells.taps[i], rounds);
    return lines;
  }

  // As few rounds as hold a slot's lines; with more of them, fewer taps are lines. None without taps.
  KNNCONV_DEVICE void CountRounds(int slot) {
    static_assert(SortedRound::kRows * gpu::kHubTaps < 1 << 16);
    const Cells cells = CellsOf(slot);
    int rounds = 0;
    if (gpu::AnyLane(OwnLines(cells, 0) > 0)) {
      int lines;
      do {
        ++rounds;
        lines = internal::WarpSum(OwnLines(cells, rounds));
      } while (lines > rounds * Order::kLines);
    }
    if (lane_ == 0) room_.rounds[slot] = rounds;
  }

  // Lays out the slots that have cells, the tile's rounds from number `count` on. Returns the number behind the last.
  KNNCONV_DEVICE int32_t LayOutSlots(int32_t first_slot, int32_t count, bool is_last) {
    const int own = room_.rounds[lane_], up_to = gpu::GroupSumUpTo(own);
    const int32_t end = count + gpu::GroupShuffle(up_to, gpu::kGroupLanes - 1, gpu::kGroupLanes);
KNNCONV_ROLLED
    for (int32_t number = FirstRound(count); number < end; number += kWarps) {
      const uint32_t before = gpu::GroupBallot(count + up_to <= number, gpu::kGroupLanes);
      const int slot = __ffs(static_cast<int>(~before)) - 1;
      const int rounds = gpu::GroupShuffle(own, slot, gpu::kGroupLanes);
      const int32_t next = count + gpu::GroupShuffle(up_to, slot, gpu::kGroupLanes);
      LayOutRound(slot, first_slot + slot, number + rounds - next, rounds, is_last && number == end - 1);
    }
    return end;
  }

  // Of the tile's rounds from number `from` on, the warp's first.
  KNNCONV_DEVICE int32_t FirstRound(int32_t from) const {
    return from + static_cast<int32_t>((static_cast<uint32_t>(warp_) - before_ - static_cast<uint32_t>(from)) % kWarps);
  }

  // Lays out a slot's round number `r` of `rounds`.
  KNNCONV_DEVICE void LayOutRound(int cells_of, int32_t slot, int r, int rounds, bool last) {
    const Cells cells = CellsOf(cells_of);
    const int own = OwnLines(cells, rounds), up_to = gpu::GroupSumUpTo(own);
    const int lines = gpu::GroupShuffle(up_to, gpu::kGroupLanes - 1, gpu::kGroupLanes);
    SortedRound& round = rounds_.Begin();
    int begin = up_to - own - r * Order::kLines;  // of the round's lines, the lane's first
    uint32_t span[kOwnRows];
    // Loads stand before the stores that they might not pass.
    int32_t row[kOwnRows] = {};
    int batch_rows[kOwnRows], from[kOwnRows], to[kOwnRows], most = 0;
    const int32_t* sources[kOwnRows];  // of line 0
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int rows = Order::RowsOf(cells.taps[i], rounds);
      const internal::SourceList list = room_.list[i][lane_];
      batch_rows[i] = list.batch_rows;
      row[i] = r < rows ? batch_rows[i] + list.sources[cells.first[i] + r] : gpu::kHole;
      const int end = begin + cells.taps[i] - rows;
      from[i] = min(max(begin, 0), Order::kLines);
      to[i] = max(from[i], min(end, Order::kLines));
      most = max(most, to[i] - from[i]);
      sources[i] = list.sources + (cells.first[i] + rows - begin);
      span[i] = static_cast<uint32_t>(from[i]) | static_cast<uint32_t>(to[i] - from[i]) << 8;
      begin = end;
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) round.source[Order::PlaceOfRow(kOwnRows * lane_ + i)] = row[i];
KNNCONV_ROLLED
    for (int l = 0; l < most; ++l) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        if (from[i] + l < to[i]) row[i] = batch_rows[i] + sources[i][from[i] + l];
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        if (from[i] + l < to[i]) round.source[Order::PlaceOfLine(from[i] + l)] = row[i];
      }
    }
    reinterpret_cast<uint2*>(round.span)[lane_] = make_uint2(span[0] | span[1] << 16, span[2] | span[3] << 16);
    if (lane_ == 0) round.lines = min(max(lines - r * Order::kLines, 0), Order::kLines);
    Finish(round, slot, last);
  }

  // A tile without taps.
  KNNCONV_DEVICE void LayOutNothing() {
    SortedRound& round = rounds_.Begin();
    for (int i = lane_; i < SortedRound::kSources; i += gpu::kGroupLanes) round.source[i] = gpu::kHole;
    reinterpret_cast<uint2*>(round.span)[lane_] = make_uint2(0, 0);
    if (lane_ == 0) round.lines = 0;
    Finish(round, gpu::kHole, true);
  }

  KNNCONV_DEVICE void Finish(SortedRound& round, int32_t slot, bool last) {
    if (lane_ < 4) round.unwritten[lane_] = room_.unwritten[lane_];
    if (lane_ == 0) {
      round.slot = slot;
      round.last = last;
    }
    rounds_.End();
  }

  const Plan& plan_;
  SortRoom& room_;
  Rounds rounds_;
  const int thread_, warp_, lane_;
  uint32_t before_ = 0;  // rounds of the tiles before, modulo kWarps
};

}  // namespace knnconv::hopper
