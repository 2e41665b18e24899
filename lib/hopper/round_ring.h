// Rounds between the warpgroup that sorts taps and the one that loads their rows; and the way of the former through a
// block's tiles.
//
// Four warps sort. Each lays out every fourth round by itself, while the others lay out those between.
#pragma once

#include <cstdint>

#include "hopper/batch_ring.h"
#include "hopper/sorted_rounds.h"
#include "hopper/tap_reader.h"
#include "hopper/tile_sorter.h"

namespace knnconv::hopper {

// A warp lays out a round by itself.
template <int kRounds>
using RoundRing = BatchRing<SortedRound, kRounds, 1>;

// Of the producers, in shared memory, where kRounds are sorted ahead.
template <int kRounds>
struct SortTable {
  SortRoom room;
  RoundRing<kRounds> ring;
};

// Where a sorting warp's rounds go: a place is always the same warp's.
template <int kRounds>
class RoundQueue {
  static constexpr int kWarps = kSortThreads / 32, kOwnPlaces = kRounds / kWarps;
  static_assert(kRounds % kWarps == 0);

 public:
  KNNCONV_DEVICE explicit RoundQueue(RoundRing<kRounds>& ring)
      : ring_(ring), warp_(threadIdx.x % kSortThreads / 32) {}

  // All sorting threads meet.
  KNNCONV_DEVICE static void Sync() { SyncThreads(1, kSortThreads); }

  KNNCONV_DEVICE SortedRound& Begin() {
    ring_.empty[Number()].Wait(place_.parity ^ 1);
    return ring_.batch[Number()];
  }

  KNNCONV_DEVICE void End() {
    ring_.full[Number()].ArriveAsWarp();
    place_.Advance();
  }

  KNNCONV_DEVICE void EndTile(int32_t) const {}

 private:
  KNNCONV_DEVICE int Number() const { return place_.stage * kWarps + warp_; }

  RoundRing<kRounds>& ring_;
  const int warp_;
  RingPlace<kOwnPlaces> place_;  // of the warp's own
};

// Sorts all tiles.
template <typename Shape, int kRounds>
KNNCONV_DEVICE void SortTiles(const TapPlan& plan, SortTable<kRounds>& table, const TileWalk<Shape>& walk) {
  TileSorter<TapPlan, RoundQueue<kRounds>> sorter(plan, table.room, table.ring);
  const int thread = static_cast<int>(threadIdx.x) % kSortThreads;
  for (int64_t turn = 0; walk.Has(turn); ++turn) sorter.Sort(ListAt(plan, walk, turn, thread));
}

}  // namespace knnconv::hopper
