// A warpgroup sorts the taps of a tile's 128 nodes by slot.
//
//     cell (slot, node) = where the node's taps of the slot begin in its list, and how many they are
//     for each slot with taps: its rounds, with as many lines each as there is room for
//
// A *cell* takes 16 bits of shared memory. Each thread walks over one node's list, whose slots ascend, and notes its
// cells of the next 32 slots; then each warp takes a round and lays it out, pass by pass, while the other warps lay
// out the next ones. Lists of neighbouring nodes are one piece of the table, unless hubs' lie between: the sources
// arrive in shared memory while threads walk. Runs on the CPU as well (tests/gpu/emulation/check_tile_sorter.cc).
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
  static constexpr uint32_t kNoLines = uint32_t{LineMark::kNoPass} << 8 | uint32_t{LineMark::kNoPass} << 24;  // two
  static_assert(sizeof(LineMark) * Order::kLines == sizeof(uint32_t) * gpu::kGroupLanes);
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
      cells.first[i] = FirstOf(cell);
      cells.taps[i] = TapsOf(cell);
    }
    return cells;
  }

  KNNCONV_DEVICE static int FirstOf(uint32_t cell) { return static_cast<int>(cell & ((1u << kCountShift) - 1)); }
  KNNCONV_DEVICE static int TapsOf(uint32_t cell) {
    return cell == internal::kNoTaps ? 0 : static_cast<int>(cell >> kCountShift) + 1;
  }

  // As few rounds as hold a slot's lines; with more of them, fewer taps are lines. None without taps.
  KNNCONV_DEVICE void CountRounds(int slot) {
    constexpr int kHigh = 1 << 16;
    static_assert(SortedRound::kRows * gpu::kHubTaps < kHigh);
    const Cells cells = CellsOf(slot);
    int rounds = 0;
    if (gpu::AnyLane((cells.taps[0] | cells.taps[1] | cells.taps[2] | cells.taps[3]) > 0)) {
      int places;
      do {
        ++rounds;
        int pairs = 0, bound = 0;  // and free singles; singles bound to half 0, and to half 1
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          const int lines = cells.taps[i] - Order::RowsOf(cells.taps[i], rounds);
          pairs += (lines >> 1) + (lines == 1 ? kHigh : 0);
          if (IsBound(lines)) bound += HalfOf(lines) == 0 ? 1 : kHigh;
        }
        pairs = internal::WarpSum(pairs);
        bound = internal::WarpSum(bound);
        places = pairs % kHigh + PlacesOfSingles(pairs / kHigh, bound % kHigh, bound / kHigh);
      } while (places > rounds * Order::kPlaces);
    }
    if (lane_ == 0) room_.rounds[slot] = rounds;
  }

  // Whether a node's last line has no partner, but pairs before it; and the half of a place where it lies then.
  KNNCONV_DEVICE static bool IsBound(int lines) { return (lines & 1) != 0 && lines > 1; }
  KNNCONV_DEVICE static int HalfOf(int lines) { return lines >> 1 & 1; }
  // Of lines without partner: some free to be in either half.
  KNNCONV_DEVICE static int PlacesOfSingles(int free, int bound0, int bound1) {
    return max(max(bound0, bound1), (free + bound0 + bound1 + 1) >> 1);
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
    SortedRound& round = rounds_.Begin();
    int32_t source[kOwnRows];
    int lines_of[kOwnRows];
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {  // loads stand before the stores that they might not pass
      const int rows = Order::RowsOf(cells.taps[i], rounds);
      source[i] = r < rows ? SourceOf(room_.list[i][lane_], cells.first[i] + r) : gpu::kHole;
      lines_of[i] = cells.taps[i] - rows;
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) round.source[Order::PlaceOfRow(kOwnRows * lane_ + i)] = source[i];
    MarkLines(round, lines_of, -r * Order::kPlaces);
    int first_pass = LineMark::kNoPass, end_pass = 0;
#pragma unroll
    for (int l = lane_; l < Order::kLines; l += gpu::kGroupLanes) {
      const LineMark mark = round.mark[l];
      int32_t line = gpu::kHole;
      if (mark.pass != LineMark::kNoPass) {
        const int row = mark.row % LineMark::kPair;
        const uint32_t cell = room_.cell[cells_of][row];
        const int taps = TapsOf(cell), rows = Order::RowsOf(taps, rounds);
        const int tap = mark.row >= LineMark::kPair ? rows + 2 * mark.pass + l / 8 % 2 : taps - 1;
        line = SourceOf(room_.list[row % kOwnRows][row / kOwnRows], FirstOf(cell) + tap);
        first_pass = min(first_pass, int{mark.pass});
        end_pass = max(end_pass, mark.pass + 1);
      }
      round.source[Order::PlaceOfLine(l)] = line;
    }
    first_pass = rounds == 1 ? 0 : LineMark::kNoPass - internal::WarpMax(LineMark::kNoPass - first_pass);
    end_pass = internal::WarpMax(end_pass);
    if (lane_ == 0) {
      round.first_pass = first_pass;
      round.end_pass = end_pass;
    }
    Finish(round, slot, last);
  }

  // Marks the round's lines: pairs, pass by pass, then lines without partner. Of the slot's, the first is in place
  // `begin`.
  KNNCONV_DEVICE void MarkLines(SortedRound& round, const int (&lines_of)[kOwnRows], int begin) const {
    reinterpret_cast<uint32_t*>(round.mark)[lane_] = kNoLines;
    gpu::SyncWarp();
    bool is_unit[kOwnRows];
    int place[kOwnRows];
KNNCONV_ROLLED
    for (int pass = 0; begin < Order::kPlaces; ++pass) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) is_unit[i] = lines_of[i] >= 2 * pass + 2;
      const int pairs = Arrange(is_unit, place);
      if (pairs == 0) break;
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        Mark(round, is_unit[i], begin + place[i], 0, kOwnRows * lane_ + i + LineMark::kPair, pass);
        Mark(round, is_unit[i], begin + place[i], 1, kOwnRows * lane_ + i + LineMark::kPair, pass);
      }
      begin += pairs;
    }
    int bound[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bool any = false;
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        is_unit[i] = IsBound(lines_of[i]) && HalfOf(lines_of[i]) == half;
        any = any || is_unit[i];
      }
      if (!gpu::AnyLane(any)) continue;
      bound[half] = Arrange(is_unit, place);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        Mark(round, is_unit[i], begin + place[i], half, kOwnRows * lane_ + i, lines_of[i] >> 1);
      }
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) is_unit[i] = lines_of[i] == 1;
    const int free = Arrange(is_unit, place), first = PlacesOfSingles(free, bound[0], bound[1]) - bound[0];
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int half = place[i] >= first;
      const int at = begin + place[i] + (half == 0 ? bound[0] : bound[1] - first);
      Mark(round, is_unit[i], at, half, kOwnRows * lane_ + i, half);
    }
    gpu::SyncWarp();
  }

  // If the unit exists, and its place is the round's.
  KNNCONV_DEVICE static void Mark(SortedRound& round, bool exists, int place, int half, int row, int pass) {
    if (exists && static_cast<uint32_t>(place) < Order::kPlaces) {
      round.mark[Order::LineAt(place, half)] = {static_cast<uint8_t>(row), static_cast<uint8_t>(pass)};
    }
  }

  // Numbers the nodes that have a unit, and returns how many they are. Even and odd rows take turns while there are
  // both, since those who add lines two by two reach different banks then.
  KNNCONV_DEVICE int Arrange(const bool (&is_unit)[kOwnRows], int (&place)[kOwnRows]) const {
    const uint32_t before = (1u << lane_) - 1;
    int count[2] = {0, 0};  // of even rows, of odd ones
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const uint32_t lanes = gpu::GroupBallot(is_unit[i], gpu::kGroupLanes);
      place[i] = count[i % 2] + __popc(lanes & before);
      count[i % 2] += __popc(lanes);
    }
    const int least = min(count[0], count[1]);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) place[i] += place[i] < least ? place[i] + i % 2 : least;
    return count[0] + count[1];
  }

  KNNCONV_DEVICE static int32_t SourceOf(const internal::SourceList& list, int at) {
    return list.batch_rows + list.sources[at];
  }

  // A tile without taps.
  KNNCONV_DEVICE void LayOutNothing() {
    SortedRound& round = rounds_.Begin();
    for (int i = lane_; i < SortedRound::kSources; i += gpu::kGroupLanes) round.source[i] = gpu::kHole;
    reinterpret_cast<uint32_t*>(round.mark)[lane_] = kNoLines;
    if (lane_ == 0) round.first_pass = round.end_pass = 0;
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
