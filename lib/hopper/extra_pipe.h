// How dinput's tiles of different nodes are cut, and the ring between those who gather rows of g and those who multiply
// them.
//
// A *round* is one slot of a tile. Of each node's taps of the slot, the first is the node's row of A; all others are
// *extra lines*, one node's after the other's. Where these are too many, several rounds are of one slot. A step is 64
// channels of a round: a stage of the ring holds rows, extra lines, and the slot's weights.
#pragma once

#include <cstdint>

#include "hopper/batch_ring.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_reader.h"

namespace knnconv::hopper {

template <typename Element, int kColumnCount>
struct ExtraShape {
  using T = Element;
  static constexpr Source kSource = Source::kExtra;
  static constexpr bool kTransposed = true;
  static constexpr bool kStoresTogether = false;
  static constexpr int kSplit = 1, kTeams = 1, kBlocksOfMultiprocessor = 1;
  static constexpr int kBoxes = 1, kConsumers = 2, kBlocks = 1, kColumns = kColumnCount, kRows = kBoxRows;
  static constexpr int kConsumerThreads = 128 * kConsumers, kThreads = kConsumerThreads + 256;
  static constexpr int kProducerRegisters = 88, kConsumerRegisters = 168;
  static constexpr int kResults = 1, kSortedNodes = 0;

  // Were taps drawn at random, one for each node and slot, a tile would have 47 in a round, and more than 64 in one
  // round of two hundred.
  static constexpr int kLines = 64;
  static constexpr int kSlots = 8;  // that are sorted together
  using Reader = TapReader<128, 4>;
  static constexpr int kBytesRows = kRows * 128, kBytesA = kBytesRows + kLines * 128;
  static constexpr int kBytesB = kColumns * kStepDepth * 2, kStageBytes = kBytesA + kBytesB;
  static constexpr int kResultBytes = kConsumers * 4 * kStoredRows * 128;
  // From an extra line's products to the next's: the 8 bytes that each lane stores of 4 lines meet all banks.
  static constexpr int kProductPitch = kColumns * static_cast<int>(sizeof(float)) + 32;
};

inline constexpr int kExtraAtOnce = 16;  // that producers load

// A few slots of a tile, sorted; one of its rounds each, unless they have no taps. Source rows include those of batch
// entries; those of one loading thread stand together.
template <typename Shape>
struct ExtraBatch {
  int4 row[Shape::kSlots][kExtraAtOnce][Shape::kRows / kExtraAtOnce / 4];  // or holes
  int4 line[Shape::kSlots][kExtraAtOnce][Shape::kLines / kExtraAtOnce / 4];
  LineSpan span[Shape::kSlots][Shape::kRows];
  int32_t lines[Shape::kSlots];  // extra ones, or -1 where the slot has no taps
  int32_t first_slot;            // or a hole: a tile without taps has one round, of zeros
  uint32_t unwritten[4];         // rows that are not written, of those of each sorting warp
  int32_t last;                  // slot of them all; -1 where batches of this tile follow
};

// What a sorting warp says of its taps of the slots that are sorted.
struct ExtraNote {
  uint32_t taps[4];  // extra ones, of slots 0 and 1, 2 and 3, ...: 16 bits each
  uint32_t live;     // a bit for each slot that has taps
  int end;           // the slot behind the last that can be sorted now
  bool more;         // taps follow
};

// Of the producers, in shared memory.
template <typename Shape>
struct ExtraTable {
  using Ring = BatchRing<ExtraBatch<Shape>, 2>;

  Ring ring;
  typename Shape::Reader::Room reader;
  ExtraNote note[4];
  int32_t least_slot[2][4];  // that each warp has next; publications take turns
};

// What consumers have to know of a round, with its last step.
template <typename Shape>
struct RoundNote {
  LineSpan span[Shape::kRows];
  uint32_t unwritten[4];  // rows, 32 each
  int32_t lines;
  uint32_t last;  // whether it is the tile's
};

template <typename Shape>
class ExtraPipe {
  static constexpr int kAlignment = 1024, kProductBytes = Shape::kLines * Shape::kProductPitch;
  static constexpr int kBarrierBytes = 128;
  static constexpr int kFixedBytes = kAlignment + Shape::kResultBytes + kProductBytes +
                                     static_cast<int>(sizeof(ExtraTable<Shape>)) + kBarrierBytes;
  static constexpr int kBytesOfStage = Shape::kStageBytes + static_cast<int>(sizeof(RoundNote<Shape>));
  static constexpr int kRoom = ((227 << 10) - kFixedBytes) / kBytesOfStage;

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
      Empty(i).Init(4 * Shape::kConsumers * kWarpArrivals);
    }
    Table().ring.Init();
    FenceBarrierInit();
    FenceAsyncProxy();
  }

  KNNCONV_DEVICE char* Rows(int stage) const { return base_ + stage * Shape::kStageBytes; }
  KNNCONV_DEVICE char* Lines(int stage) const { return Rows(stage) + Shape::kBytesRows; }
  KNNCONV_DEVICE char* B(int stage) const { return Rows(stage) + Shape::kBytesA; }
  KNNCONV_DEVICE char* Results() const { return Rows(kStages); }
  // Of a round's extra lines.
  KNNCONV_DEVICE char* Products() const { return Results() + Shape::kResultBytes; }
  KNNCONV_DEVICE ExtraTable<Shape>& Table() const {
    return *reinterpret_cast<ExtraTable<Shape>*>(Products() + kProductBytes);
  }
  KNNCONV_DEVICE Barrier& Full(int stage) const { return Barriers()[stage]; }
  KNNCONV_DEVICE Barrier& Empty(int stage) const { return Barriers()[kStages + stage]; }
  KNNCONV_DEVICE RoundNote<Shape>& Note(int stage) const {
    return reinterpret_cast<RoundNote<Shape>*>(Barriers() + kBarrierBytes / sizeof(Barrier))[stage];
  }

 private:
  static_assert(sizeof(ExtraTable<Shape>) % alignof(Barrier) == 0 && kProductBytes % 16 == 0);

  KNNCONV_DEVICE Barrier* Barriers() const { return reinterpret_cast<Barrier*>(&Table() + 1); }

  char* base_;
};

}  // namespace knnconv::hopper
