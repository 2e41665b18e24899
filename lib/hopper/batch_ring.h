// How one warpgroup hands what it lays out to another, in batches, through a ring in shared memory; or lays out for
// itself, where registers for a warpgroup more are lacking.
//
// Lister: what lays out tiles. It begins with a tile (Begin), fills batches until one is the tile's last (LayOut says
// so), reads ahead once a batch is in others' hands (EndRound), and in the end leaves nothing under way (Finish).
#pragma once

#include <cstdint>

#include "hopper/tap_pipe.h"

namespace knnconv::hopper {

// kFillers: warps that lay out a batch together.
template <typename Batch, int kBatches, int kFillers = 4>
struct BatchRing {
  static_assert(kBatches >= 2);
  using Place = RingPlace<kBatches>;

  Batch batch[kBatches];
  Barrier full[kBatches], empty[kBatches];

  // By one thread; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() {
    for (int i = 0; i < kBatches; ++i) {
      full[i].Init(kFillers * kWarpArrivals);
      empty[i].Init(4 * kWarpArrivals);
    }
    FenceBarrierInit();
  }
};

// Lays out all tiles for another warpgroup.
template <typename Lister, typename Ring, typename Walk>
KNNCONV_DEVICE void LayOutTiles(Lister lister, Ring& ring, const Walk& walk) {
  typename Ring::Place place;
  for (int64_t turn = 0; walk.Has(turn); ++turn) {
    lister.Begin(turn);
    bool last = false;
    while (!last) {
      ring.empty[place.stage].Wait(place.parity ^ 1);
      last = lister.LayOut(ring.batch[place.stage]);
      ring.full[place.stage].ArriveAsWarp();
      place.Advance();
      lister.EndRound();
    }
  }
  lister.Finish();
}

// Batches as another warpgroup lays them out.
template <typename Ring>
class QueuedBatches {
 public:
  KNNCONV_DEVICE explicit QueuedBatches(Ring& ring) : ring_(ring) {}

  KNNCONV_DEVICE void Begin(int64_t) {}
  KNNCONV_DEVICE const auto& Take() {
    ring_.full[place_.stage].Wait(place_.parity);
    return ring_.batch[place_.stage];
  }
  KNNCONV_DEVICE void Give() {
    ring_.empty[place_.stage].ArriveAsWarp();
    place_.Advance();
  }
  KNNCONV_DEVICE void Finish() const {}

 private:
  Ring& ring_;
  typename Ring::Place place_;
};

// Batches as the warpgroup lays them out itself.
template <typename Ring, typename Lister>
class OwnBatches {
 public:
  KNNCONV_DEVICE OwnBatches(Ring& ring, const Lister& lister) : ring_(ring), lister_(lister) {}

  KNNCONV_DEVICE void Begin(int64_t turn) { lister_.Begin(turn); }
  // Nobody reads the batch that is overwritten: all threads have begun with a later one.
  KNNCONV_DEVICE const auto& Take() {
    auto& batch = ring_.batch[place_.stage];
    lister_.LayOut(batch);
    SyncThreads(Lister::kBarrier, 128);
    return batch;
  }
  KNNCONV_DEVICE void Give() {
    place_.Advance();
    lister_.EndRound();
  }
  KNNCONV_DEVICE void Finish() const { lister_.Finish(); }

 private:
  Ring& ring_;
  Lister lister_;
  typename Ring::Place place_;
};

}  // namespace knnconv::hopper
