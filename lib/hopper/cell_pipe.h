// How dinput's tiles of different nodes are cut where the taps of a cell, (node, slot), are added before the product,
// and the rings between those who gather rows of g and those who add and multiply them.
//
// A *round* is one slot of a tile: all taps of the slot that its nodes have. Where these are too many, several rounds
// are of one slot. A step is 64 channels of a round. Each consuming warpgroup has 64 nodes and a ring of its own, whose
// stages hold the lines its nodes read in this step, one after the other, and where each node's are. A second ring, of
// the slots' weights, is common to both.
#pragma once

#include <cstdint>

#include "hopper/batch_ring.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_reader.h"

namespace knnconv::hopper {

struct CellShape {
  using T = gpu::BFloat;
  static constexpr Source kSource = Source::kCells;
  static constexpr bool kTransposed = true;
  static constexpr bool kStoresTogether = false;
  static constexpr int kSplit = 1;
  static constexpr int kBoxes = 1, kConsumers = 2, kColumns = 64, kRows = kBoxRows;
  static constexpr int kBlocks = 1, kTeams = 1, kBlocksOfMultiprocessor = 1;
  static constexpr int kConsumerThreads = 256, kThreads = kConsumerThreads + 256;
  static constexpr int kProducerRegisters = 96, kConsumerRegisters = 160;
  static constexpr int kResults = 1, kSortedNodes = 0;

  static constexpr int kHalfRows = kRows / kConsumers;  // of a warpgroup
  static constexpr int kSlots = 4;  // that are sorted together
  using Reader = TapReader<128, 4>;
  // On 100,000 random points a warpgroup's nodes have 64 taps of a slot, and more than this in a round of a thousand.
  static constexpr int kLines = 96;
  static constexpr int kStageBytes = kLines * 128 + kHalfRows * static_cast<int>(sizeof(LineSpan));
  static constexpr int kBytesB = kColumns * kStepDepth * 2;
  static constexpr int kWeightStages = 5;
  static constexpr int kResultBytes = kConsumers * 4 * kStoredRows * 128;
};

inline constexpr int kLinesAtOnce = 8;  // that a warpgroup's producers load

// A few slots of a tile, sorted; one of its rounds each, unless they have no taps. A byte each where they are packed.
template <typename Shape>
struct CellBatch {
  // The source rows of lines, batch entries included: those of one loading thread together.
  int4 source[Shape::kSlots][Shape::kConsumers][kLinesAtOnce][Shape::kLines / kLinesAtOnce / 4];
  LineSpan span[Shape::kSlots][Shape::kRows];
  uint32_t lines[Shape::kConsumers];  // of each warpgroup
  uint32_t live;                      // not zero where one of the warpgroups has lines
  int32_t first_slot;                 // or a hole: a tile without taps has one round, of zeros
  uint32_t unwritten[4];              // rows that are not written, of the rows of each warp
  int32_t more;                       // whether batches of this tile follow
};

// What a sorting warp says of its taps of the slots that are sorted.
struct SortNote {
  uint32_t taps[2];  // of slots 0 and 1, 2 and 3: 16 bits each
  int end;           // the slot behind the last that can be sorted now
  bool more;         // taps follow
};

// Of the producers, in shared memory.
template <typename Shape>
struct CellTable {
  using Ring = BatchRing<CellBatch<Shape>, 2>;

  Ring ring;
  typename Shape::Reader::Room reader;
  SortNote note[4];
  int32_t least_slot[2][4];  // that each warp has next; publications take turns
};

template <typename Shape>
class CellPipe {
  static constexpr int kAlignment = 1024;
  static constexpr int kFixedBytes = kAlignment + Shape::kWeightStages * Shape::kBytesB + Shape::kResultBytes + 128 +
                                     static_cast<int>(sizeof(CellTable<Shape>)) + 512;
  static constexpr int kRoom = ((227 << 10) - kFixedBytes) / (Shape::kConsumers * Shape::kStageBytes);

 public:
  static constexpr int kStages = kRoom < 6 ? kRoom : 6;  // of each warpgroup
  static constexpr int kSharedBytes = kFixedBytes + Shape::kConsumers * kStages * Shape::kStageBytes;
  static_assert(kStages >= 3);
  using Place = RingPlace<kStages>;
  using WeightPlace = RingPlace<Shape::kWeightStages>;

  // `half`: the warpgroup whose ring it is.
  KNNCONV_DEVICE CellPipe(char* shared, int half) : half_(half) {
    const uint32_t address = SharedAddress(shared);
    base_ = shared + ((address + kAlignment - 1) / kAlignment * kAlignment - address);
  }

  // By one thread; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() {
    for (half_ = 0; half_ < Shape::kConsumers; ++half_) {
      for (int i = 0; i < kStages; ++i) {
        // Each producer's copies, and once more each of their warps, after what they write.
        Full(i).Init(64 + 2 * kWarpArrivals);
        Empty(i).Init(4 * kWarpArrivals);
      }
    }
    for (int i = 0; i < Shape::kWeightStages; ++i) {
      FullWeights(i).Init(1);
      EmptyWeights(i).Init(4 * Shape::kConsumers);
    }
    Table().ring.Init();
    for (int i = 0; i < 128 / 4; ++i) reinterpret_cast<uint32_t*>(Zeros())[i] = 0;
    FenceBarrierInit();
    FenceAsyncProxy();
  }

  KNNCONV_DEVICE char* B(int stage) const { return base_ + stage * Shape::kBytesB; }
  KNNCONV_DEVICE char* Results() const { return base_ + Shape::kWeightStages * Shape::kBytesB; }
  KNNCONV_DEVICE char* Lines(int stage) const {
    return Results() + Shape::kResultBytes + (half_ * kStages + stage) * Shape::kStageBytes;
  }
  KNNCONV_DEVICE LineSpan& Span(int stage, int row) const {
    return reinterpret_cast<LineSpan*>(Lines(stage) + Shape::kLines * 128)[row];
  }
  // A line of zeros.
  KNNCONV_DEVICE char* Zeros() const {
    return Results() + Shape::kResultBytes + Shape::kConsumers * kStages * Shape::kStageBytes;
  }
  KNNCONV_DEVICE CellTable<Shape>& Table() const { return *reinterpret_cast<CellTable<Shape>*>(Zeros() + 128); }
  KNNCONV_DEVICE Barrier& FullWeights(int stage) const { return barriers()[stage]; }
  KNNCONV_DEVICE Barrier& EmptyWeights(int stage) const { return barriers()[Shape::kWeightStages + stage]; }
  KNNCONV_DEVICE Barrier& Full(int stage) const { return own_barriers()[stage]; }
  KNNCONV_DEVICE Barrier& Empty(int stage) const { return own_barriers()[kStages + stage]; }
  KNNCONV_DEVICE uint32_t& Note(int stage) const {
    constexpr int kBarriers = 2 * (Shape::kWeightStages + Shape::kConsumers * kStages);
    static_assert(kBarriers * 8 + Shape::kConsumers * kStages * 12 <= 512);
    return reinterpret_cast<uint32_t*>(barriers() + kBarriers)[half_ * kStages + stage];
  }
  // Rows that are not written, of the rows of each producing warp; with a tile's last step.
  KNNCONV_DEVICE uint32_t& Unwritten(int stage, int warp) const {
    return (&Note(0) - half_ * kStages)[(Shape::kConsumers + 2 * half_ + warp) * kStages + stage];
  }

 private:
  KNNCONV_DEVICE Barrier* barriers() const {
    return reinterpret_cast<Barrier*>(Zeros() + 128 + sizeof(CellTable<Shape>));
  }
  KNNCONV_DEVICE Barrier* own_barriers() const {
    return barriers() + 2 * (Shape::kWeightStages + half_ * kStages);
  }

  int half_;
  char* base_;
};

}  // namespace knnconv::hopper
