// How dinput's tiles of different nodes are cut, and the ring between those who gather rows of g and those who multiply
// them.
//
// In a *round* (sorted_rounds.h) the first tap of each node is its row of A; all others are *extra lines*. A step is 64
// channels of a round: a stage of the ring holds rows, extra lines, and the slot's weights. One warpgroup multiplies
// rows, another one extra lines.
#pragma once

#include <cstdint>

#include "hopper/device.h"
#include "hopper/extra_sums.h"
#include "hopper/round_ring.h"
#include "hopper/tap_pipe.h"

namespace knnconv::hopper {

template <typename Element, int kColumnCount>
struct ExtraShape {
  using T = Element;
  static constexpr Source kSource = Source::kExtra;
  static constexpr bool kTransposed = true;
  static constexpr bool kStoresTogether = false;
  static constexpr int kSplit = 1, kTiles = 1, kTeams = 1, kBlocksOfMultiprocessor = 1;
  static constexpr int kBoxes = 1, kConsumers = 1, kBlocks = 2, kColumns = kColumnCount, kRows = kBoxRows;
  static constexpr int kConsumerThreads = 128 * kConsumers;  // who multiply rows
  static constexpr int kThreads = kConsumerThreads + 128 + kSortThreads + 128;  // of lines, who sort, who gather
  static constexpr int kRowRegisters = 200, kLineRegisters = 128, kSorterRegisters = 104, kFeederRegisters = 72;
  // More than the block was given, 128 each, would wait for ever.
  static_assert(kConsumerThreads * kRowRegisters + 128 * (kLineRegisters + kSorterRegisters + kFeederRegisters) <=
                128 * kThreads);
  static constexpr int kResults = 1, kSortedNodes = 0;

  // Were taps drawn at random, one for each node and slot, a tile would have 47 in 24 of 32 places of a round, and too
  // many in one round of fifty.
  static constexpr int kLines = RoundOrder::kLines;
  using Table = SortTable<kColumns == 64 ? 8 : 4>;
  static constexpr int kBytesRows = kRows * 128, kBytesA = kBytesRows + kLines * 128;
  static constexpr int kBytesB = kColumns * kStepDepth * 2, kStageBytes = kBytesA + kBytesB;
  static constexpr int kResultBytes = kConsumers * 4 * kStoredRows * 128;
  static constexpr int kSumBytes = SharedSums<kColumns>::BytesOf(kRows);  // of extra lines
};

inline constexpr int kExtraAtOnce = RoundOrder::kLoaders;  // lines that producers load

// What consumers have to know of a round, with its last step.
template <typename Shape>
struct RoundNote {
  LineMark mark[Shape::kLines];
  uint32_t unwritten[4];  // rows, 32 each
  int32_t first_pass, end_pass;
  uint32_t last;  // with each step: whether it is the tile's last
};

template <typename Shape>
class ExtraPipe {
  static constexpr int kAllConsumers = Shape::kConsumerThreads + 128;
  static constexpr int kAlignment = 1024, kBarrierBytes = 128;
  static constexpr int kTableBytes = static_cast<int>(sizeof(typename Shape::Table));
  static constexpr int kFixedBytes = kAlignment + Shape::kSumBytes + Shape::kResultBytes + kTableBytes + kBarrierBytes;
  static constexpr int kBytesOfStage = Shape::kStageBytes + static_cast<int>(sizeof(RoundNote<Shape>));
  static constexpr int kRoom = (kMostBlockBytes - kFixedBytes) / kBytesOfStage;

 public:
  static constexpr int kStages = kRoom < 8 ? kRoom : 8;
  static constexpr int kSharedBytes = kFixedBytes + kStages * kBytesOfStage;
  static_assert(kStages >= 3 && 2 * kStages * sizeof(Barrier) <= kBarrierBytes);
  using Place = RingPlace<kStages>;

  KNNCONV_DEVICE explicit ExtraPipe(char* shared) {
    const uint32_t address = SharedAddress(shared);
    base_ = shared + ((address + kAlignment - 1) / kAlignment * kAlignment - address);
  }

  // By one thread; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() const {
    for (int i = 0; i < kStages; ++i) {
      // Each producer's copies, each of their warps after what it writes, and who loads weights.
      Full(i).Init(128 + 4 * kWarpArrivals + 1);
      Empty(i).Init(Shape::kConsumers * 4 * kWarpArrivals + 4 * kWarpArrivals);
    }
    Table().ring.Init();
    FenceBarrierInit();
    FenceAsyncProxy();
  }

  KNNCONV_DEVICE char* Rows(int stage) const { return base_ + stage * Shape::kStageBytes; }
  KNNCONV_DEVICE char* Lines(int stage) const { return Rows(stage) + Shape::kBytesRows; }
  KNNCONV_DEVICE char* B(int stage) const { return Rows(stage) + Shape::kBytesA; }
  KNNCONV_DEVICE char* Sums() const { return Rows(kStages); }  // of a tile's extra lines
  KNNCONV_DEVICE char* Results() const { return Sums() + Shape::kSumBytes; }
  KNNCONV_DEVICE typename Shape::Table& Table() const {
    return *reinterpret_cast<typename Shape::Table*>(Results() + Shape::kResultBytes);
  }
  KNNCONV_DEVICE Barrier& Full(int stage) const { return Barriers()[stage]; }
  KNNCONV_DEVICE Barrier& Empty(int stage) const { return Barriers()[kStages + stage]; }
  KNNCONV_DEVICE RoundNote<Shape>& Note(int stage) const {
    return reinterpret_cast<RoundNote<Shape>*>(Barriers() + kBarrierBytes / sizeof(Barrier))[stage];
  }

  // Zeros, by all threads; the block has to synchronise afterwards.
  KNNCONV_DEVICE void ClearSums() const {
    for (int at = threadIdx.x * 16; at < Shape::kSumBytes; at += Shape::kThreads * 16) {
      *reinterpret_cast<uint4*>(Sums() + at) = make_uint4(0, 0, 0, 0);
    }
  }
  // Who adds up lines ends a tile's sums; who multiplies rows waits for them, takes them, and says so.
  KNNCONV_DEVICE void EndSums() const { ArriveAt(3, kAllConsumers); }
  KNNCONV_DEVICE void WaitForSums() const { SyncThreads(3, kAllConsumers); }
  KNNCONV_DEVICE void EndTaking() const { ArriveAt(4, kAllConsumers); }
  KNNCONV_DEVICE void WaitUntilTaken() const { SyncThreads(4, kAllConsumers); }

 private:
  static_assert(sizeof(typename Shape::Table) % alignof(Barrier) == 0 && Shape::kSumBytes % 16 == 0);

  KNNCONV_DEVICE Barrier* Barriers() const { return reinterpret_cast<Barrier*>(&Table() + 1); }

  char* base_;
};

}  // namespace knnconv::hopper
