// Products of a halo kernel on Hopper, and whose turn they are.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "hopper/halo_stage.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

enum class HaloLayout : int { kLines, kPairs, kFolds };  // halo_plan.h

// kGroupSteps: steps of 16 in depth of a tap; 1 with pairs.
template <typename T_, HaloLayout kLayout, bool kTransposed_, int kColumns_, int kGroupSteps_>
struct HaloShape {
  using T = T_;
  using Deal = gpu::ColumnDeal<kColumns_ / 8>;  // with pairs
  static constexpr bool kPairs = kLayout == HaloLayout::kPairs, kTransposed = kTransposed_;
  static constexpr bool kWeightsInParts = kLayout == HaloLayout::kLines;
  static constexpr int kColumns = kColumns_, kGroupSteps = kGroupSteps_, kThreads = kHaloTeams * kTeamThreads;
  static constexpr int kStepBytes = kHaloDepth * kColumns * 2;  // of weights
  static constexpr int kGroupBytes = kGroupSteps * kStepBytes;
  // From a step's weights to the next one's, which transposed weights have further on in their lines.
  static constexpr int kNextStep = !kPairs && kTransposed ? kHaloDepth * 2 : kStepBytes;
  static constexpr Major kMajorB = kPairs || kTransposed ? Major::kK : Major::kMN;
};

template <typename Shape>
using HaloSums = float[kHaloBlocks][Shape::kColumns / 2];

template <typename Shape>
KNNCONV_DEVICE void ClearSums(HaloSums<Shape>& sums) {
#pragma unroll
  for (auto& block_sums : sums) {
#pragma unroll
    for (float& sum : block_sums) sum = 0.0f;
  }
}

// Waits for the products that were started.
template <typename Shape>
KNNCONV_DEVICE void WaitForSums(HaloSums<Shape>& sums) {
  WaitForProducts<0>();
#pragma unroll
  for (auto& block_sums : sums) PinSums(block_sums);
}

// Of a tile's blocks, which one is how many blocks down and across.
KNNCONV_DEVICE int BlockDown(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? block : 0; }
KNNCONV_DEVICE int BlockAcross(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? 0 : block; }

// Two teams and two others multiply in turn, so that of each pair one multiplies while the other waits for copies or
// stores; a team alone does not keep the tensor cores busy, since its products wait for each other. It passes its turn
// on before its last products, so that others follow without a gap. All teams of a block take equally many turns.
class Turns {
 public:
  KNNCONV_DEVICE Turns(int team, int count) : team_(team), left_(count) {
    if (!IsFirst() && left_ > 0) ArriveAt(Id(team_ ^ 2), 2 * kTeamThreads);
  }
  KNNCONV_DEVICE int Left() const { return left_; }
  KNNCONV_DEVICE void Take() const { SyncThreads(Id(team_), 2 * kTeamThreads); }
  KNNCONV_DEVICE void Pass() {
    --left_;
    if (IsFirst() || left_ > 0) ArriveAt(Id(team_ ^ 2), 2 * kTeamThreads);
  }

 private:
  static_assert(kHaloTeams == 4);
  KNNCONV_DEVICE bool IsFirst() const { return team_ < 2; }
  // Of the barrier where a team waits for the other.
  KNNCONV_DEVICE static int Id(int team) { return 1 + kHaloTeams + team; }

  const int team_;
  int left_;
};

// Teams that multiply whenever they have a tile.
struct NoTurns {
  KNNCONV_DEVICE void Pass() const {}
};

// Where a tile's operands begin, and how wgmma finds them.
template <typename Shape>
struct HaloOperands {
  uint32_t a_low[kHaloBlocks], a_high, b_low, b_high;

  KNNCONV_DEVICE HaloOperands(const HaloPlan& plan, const HaloBlock& place, const char* halo, const char* weight) {
    constexpr int kLine = Shape::kTransposed ? Shape::kGroupSteps * kHaloDepth * 2 : Shape::kColumns * 2;
    const uint64_t a = Shape::kPairs ? DescribeCores(halo, 0, plan.row_pitch)
                                     : DescribeLines(halo + place.first_at, plan.pixel_bytes, plan.row_pitch);
    const uint64_t b = Shape::kPairs ? DescribeCores(weight, Shape::kStepBytes / 2, 128)
                                     : DescribeLines(weight, kLine, 8 * kLine);
#pragma unroll
    for (int i = 0; i < kHaloBlocks; ++i) {
      const int at = BlockDown(plan, i) * plan.row_pitch + BlockAcross(plan, i) * plan.pixel_bytes;
      a_low[i] = Uniform(a + kBlockSide * at / 16);
    }
    a_high = Uniform(a >> 32);
    b_low = Uniform(b);
    b_high = static_cast<uint32_t>(b >> 32);
  }
};

// Starts a tile's products, and leaves them running. All that moves are the lower halves of descriptions.
// `weight_parts`: barriers of weights that arrive in parts, else unused. Before the last line of taps, passes the turn.
template <typename Shape, typename Order>
KNNCONV_DEVICE void StartProducts(const HaloPlan& plan, const HaloBlock& place, const HaloOperands<Shape>& operands,
                                  Barrier* weight_parts, Order& turns, HaloSums<Shape>& sums) {
  uint32_t line = 0, b_low = operands.b_low;
  if (place.lines == 0) turns.Pass();
#pragma unroll 1
  for (int i = 0; i < place.lines; ++i) {
    if constexpr (Shape::kWeightsInParts) weight_parts[min(i, kWeightParts - 1)].Wait(0);
    if (i == place.lines - 1) turns.Pass();
    uint32_t at = line;
#pragma unroll 1
    for (int j = 0; j < place.columns; ++j) {
      uint32_t lead = 0;
      if constexpr (Shape::kPairs) {
        lead = static_cast<uint32_t>((j == place.columns - 1 ? plan.last_lead : plan.lead) >> 4) << 16;
      }
      FenceProducts();
#pragma unroll
      for (int step = 0; step < Shape::kGroupSteps; ++step) {
#pragma unroll
        for (int block = 0; block < kHaloBlocks; ++block) {
          MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Shape::kMajorB>(
              sums[block], Join(operands.a_low[block] + at + step * (kHaloDepth * 2 / 16) + lead, operands.a_high),
              Join(b_low + step * (Shape::kNextStep / 16), operands.b_high));
        }
      }
      CommitProducts();
      at += place.column_step;
      b_low += Shape::kGroupBytes / 16;
    }
    line += place.line_step;
  }
}

}  // namespace knnconv::hopper
