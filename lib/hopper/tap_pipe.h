// The pipeline between a team's threads that load tiles and those that multiply them: a ring of stages in shared
// memory.
//
// A stage holds one step of the main loop, A [rows, 64] and B [64, columns], and a note. Notes are all that tells
// consumers where a tile ends: they need not know where tiles come from. What a step lacks in depth is zeros in A and
// B.
#pragma once

#include <cstdint>

#include "hopper/ptx.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

// What a consumer has to know of a step.
struct StepNote {
  bool last;       // of its tile
  bool unwritten;  // with the last: somebody else writes the tile
  uint32_t dead;   // with the last: a bit for each box whose rows become zeros, without the bias
  uint32_t slot;   // where weights are resident

  KNNCONV_DEVICE static StepNote Unpack(uint32_t bits) {
    return {(bits & 1) != 0, (bits >> 1 & 1) != 0, bits >> 2 & 3, bits >> 4};
  }
  KNNCONV_DEVICE uint32_t Pack() const { return (last ? 1u : 0) | (unwritten ? 2u : 0) | dead << 2 | slot << 4; }
};

// The same for tiles of rows from anywhere, a bit for each of 32 rows; with the last step.
struct RowMarks {
  uint32_t unwritten, dead;
};

// What blocks that share a tile tell each other, in each of them.
template <int kBlocks>
struct SplitMeeting {
  Barrier open[kBlocks];          // the block of this number keeps stages free, from first_stage on
  Barrier added;                  // this block has the others' sums of a tile
  uint32_t first_stage[kBlocks];
};

// On a stage of rows: each producer's copies, and once more each of their warps, after what they write themselves.
inline constexpr int kRowArrivals = 128 + 4;

// A place in the ring, and the parity of the phase that fills it.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  KNNCONV_DEVICE void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <typename Shape>
class Pipe {
 public:
  using Place = RingPlace<Shape::kStages>;

  KNNCONV_DEVICE Pipe(char* shared, int team) {
    const uint32_t address = SharedAddress(shared);
    weights_ = shared + ((address + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment - address);
    base_ = weights_ + Shape::kWeightBytes + team * Shape::kTeamBytes;
  }

  // By one thread for each team; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() const {
    if (IsFirst()) Resident().Init(1);
    for (int i = 0; i < Shape::kStages; ++i) {
      Full(i).Init(Shape::kSource == Source::kBoxes ? 1 : kRowArrivals);
      Empty(i).Init(4 * Shape::kConsumers);
    }
    if constexpr (Shape::kSplit > 1) {
      for (Barrier& open : Meeting().open) open.Init(1);
      Meeting().added.Init(4 * Shape::kConsumers);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
  }

  // Whether it is the block's first team's.
  KNNCONV_DEVICE bool IsFirst() const { return base_ == weights_ + Shape::kWeightBytes; }

  KNNCONV_DEVICE char* A(int stage) const { return base_ + stage * Shape::kStageBytes; }
  KNNCONV_DEVICE char* B(int stage) const { return A(stage) + Shape::kBytesA; }
  KNNCONV_DEVICE char* Weights(int slot) const { return weights_ + slot * Shape::kSlotBytes; }
  // Of the weights: one of the block, the first team's.
  KNNCONV_DEVICE Barrier& Resident() const { return BarriersOf(weights_ + Shape::kWeightBytes)[2 * Shape::kStages]; }
  KNNCONV_DEVICE Barrier& Full(int stage) const { return barriers()[stage]; }
  KNNCONV_DEVICE Barrier& Empty(int stage) const { return barriers()[Shape::kStages + stage]; }
  KNNCONV_DEVICE uint32_t& Note(int stage) const {
    return reinterpret_cast<uint32_t*>(barriers() + 2 * Shape::kStages + 1)[stage];
  }
  KNNCONV_DEVICE RowMarks& Marks(int stage, int rows) const {
    return reinterpret_cast<RowMarks*>(&Note(Shape::kStages))[stage * (Shape::kRows / 32) + rows];
  }
  KNNCONV_DEVICE SplitMeeting<Shape::kSplit>& Meeting() const {
    constexpr int kOffset = Shape::kTailBytes - sizeof(SplitMeeting<Shape::kSplit>);
    return *reinterpret_cast<SplitMeeting<Shape::kSplit>*>(reinterpret_cast<char*>(barriers()) + kOffset);
  }
  // For producers of a table's boxes, in place of marks.
  static constexpr int kTapBytes = Shape::kTailBytes - (Shape::kStages * (2 * sizeof(Barrier) + sizeof(uint32_t)) + 8) -
                                   (Shape::kSplit > 1 ? sizeof(SplitMeeting<Shape::kSplit>) : 0);
  KNNCONV_DEVICE char* Taps() const { return reinterpret_cast<char*>(&Note(Shape::kStages)); }
  // Shape::kResults times kStoredRows lines for each consuming warp.
  KNNCONV_DEVICE char* Results() const { return base_ + Shape::kStages * Shape::kStageBytes; }
  // The block's, for the order of its nodes; before the pipeline runs, stages are free for what sorts them.
  KNNCONV_DEVICE uint16_t* Order() const {
    return reinterpret_cast<uint16_t*>(weights_ + Shape::kWeightBytes + Shape::kTeams * Shape::kTeamBytes);
  }
  // kRowBytes for producers of rows.
  KNNCONV_DEVICE char* Rows() const { return reinterpret_cast<char*>(barriers()) + Shape::kTailBytes; }

 private:
  KNNCONV_DEVICE static Barrier* BarriersOf(char* base) {
    return reinterpret_cast<Barrier*>(base + Shape::kStages * Shape::kStageBytes + Shape::kResultBytes);
  }
  KNNCONV_DEVICE Barrier* barriers() const { return BarriersOf(base_); }
  static constexpr int kBytesOfStage = 2 * sizeof(Barrier) + sizeof(uint32_t) + Shape::kRows / 32 * sizeof(RowMarks);
  static constexpr int kMeetingBytes = Shape::kSplit > 1 ? sizeof(SplitMeeting<Shape::kSplit>) : 0;
  static_assert(Shape::kStages >= 3 && Shape::kStages * kBytesOfStage + 8 + kMeetingBytes <= Shape::kTailBytes);
  static_assert(sizeof(SplitMeeting<Shape::kSplit>) % alignof(Barrier) == 0);

  char* weights_;
  char* base_;  // of the team
};

// Loads B of a step: 64 rows of the slot's matrix from `channel` on, or of its transpose; zeros of a hole.
template <typename Shape>
KNNCONV_DEVICE void LoadWeights(const TapPlan& plan, char* to, Barrier* full, const TapTile& tile, int channel,
                                int slot) {
  const int matrix = slot < 0 ? slot : tile.group * plan.groups.slots + slot;
  if constexpr (Shape::kTransposed) {
    LoadBox(to, &plan.weight, full, channel, tile.first_column, matrix);
  } else {
#pragma unroll
    for (int j = 0; j < Shape::kColumns; j += 64) {
      LoadBox(to + j * kStepDepth * 2, &plan.weight, full, tile.first_column + j, channel, matrix);
    }
  }
}

}  // namespace knnconv::hopper
