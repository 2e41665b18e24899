// Rounds between the warpgroup that sorts taps and the one that loads their rows; and the way of the former through a
// block's tiles.
//
// Four warps sort. Each lays out every fourth round by itself, while the others lay out those between.
#pragma once

#include <cstdint>

#include "hopper/sorted_rounds.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_reader.h"
#include "hopper/tile_sorter.h"

namespace knnconv::hopper {

template <int kRounds>
struct RoundRing {
  using Place = RingPlace<kRounds>;

  SortedRound round[kRounds];
  Barrier full[kRounds], empty[kRounds];

  // By one thread; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() {
    for (int i = 0; i < kRounds; ++i) {
      full[i].Init(kWarpArrivals);
      empty[i].Init(4 * kWarpArrivals);
    }
    FenceBarrierInit();
  }
};

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
    return ring_.round[Number()];
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

// Rounds as they come. By all threads of the warpgroup.
template <int kRounds>
class QueuedRounds {
 public:
  KNNCONV_DEVICE explicit QueuedRounds(RoundRing<kRounds>& ring) : ring_(ring) {}

  KNNCONV_DEVICE const SortedRound& Take() {
    ring_.full[place_.stage].Wait(place_.parity);
    return ring_.round[place_.stage];
  }
  KNNCONV_DEVICE void Give() {
    ring_.empty[place_.stage].ArriveAsWarp();
    place_.Advance();
  }

 private:
  RoundRing<kRounds>& ring_;
  typename RoundRing<kRounds>::Place place_;
};

}  // namespace knnconv::hopper
