// Products of a halo kernel on Hopper, and whose turn they are.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "hopper/halo_stage.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

// kGroupSteps: steps of 16 in depth of a tap; 1 with pairs.
template <typename T_, bool kPairs_, bool kTransposed_, int kColumns_, int kGroupSteps_>
struct HaloShape {
  using T = T_;
  using Deal = gpu::ColumnDeal<kColumns_ / 8>;  // with pairs
  static constexpr bool kPairs = kPairs_, kTransposed = kTransposed_;
  static constexpr int kColumns = kColumns_, kGroupSteps = kGroupSteps_, kThreads = kHaloTeams * kTeamThreads;
  static constexpr int kStepBytes = kHaloDepth * kColumns * 2;  // of weights
  static constexpr int kGroupBytes = kGroupSteps * kStepBytes;
  // From a step's weights to the next one's, which transposed weights have further on in their lines.
  static constexpr int kNextStep = !kPairs && kTransposed ? kHaloDepth * 2 : kStepBytes;
  static constexpr Major kMajorB = kPairs || kTransposed ? Major::kK : Major::kMN;
};

template <typename Shape>
using HaloSums = float[kHaloBlocks][Shape::kColumns / 2];

// Of a tile's blocks, which one is how many blocks down and across.
KNNCONV_DEVICE int BlockDown(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? block : 0; }
KNNCONV_DEVICE int BlockAcross(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? 0 : block; }

// The first lane's value, as one that the compiler sees to be the same in a warp.
KNNCONV_DEVICE uint32_t Uniform(uint64_t value) { return __shfl_sync(kAllLanes, static_cast<uint32_t>(value), 0); }

KNNCONV_DEVICE uint64_t Join(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }

// Starts the products of the tile at `halo`, and leaves them running. All that moves are the lower halves of
// descriptions, which stay in uniform registers. `weight_parts`: barriers of the weights, or null where they are there.
template <typename Shape>
KNNCONV_DEVICE void StartProducts(const HaloPlan& plan, const HaloBlock& place, const char* halo, const char* weight,
                                  Barrier* weight_parts, HaloSums<Shape>& sums) {
  constexpr int kLine = Shape::kTransposed ? Shape::kGroupSteps * kHaloDepth * 2 : Shape::kColumns * 2;
  const uint64_t a = Shape::kPairs ? DescribeCores(halo, 0, plan.row_pitch)
                                   : DescribeLines(halo + place.first_at, plan.pixel_bytes, plan.row_pitch);
  const uint64_t b = Shape::kPairs ? DescribeCores(weight, Shape::kStepBytes / 2, 128)
                                   : DescribeLines(weight, kLine, 8 * kLine);
  const uint32_t a_high = Uniform(a >> 32), b_high = static_cast<uint32_t>(b >> 32);
  uint32_t a_low[kHaloBlocks];
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int at = BlockDown(plan, i) * plan.row_pitch + BlockAcross(plan, i) * plan.pixel_bytes;
    a_low[i] = Uniform(a + kBlockSide * at / 16);
  }
  uint32_t line = 0, b_low = Uniform(b);
#pragma unroll 1
  for (int i = 0; i < place.lines; ++i) {
    if constexpr (!Shape::kPairs) weight_parts[min(i, kWeightParts - 1)].Wait(0);
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
              sums[block], Join(a_low[block] + at + step * (kHaloDepth * 2 / 16) + lead, a_high),
              Join(b_low + step * (Shape::kNextStep / 16), b_high));
        }
      }
      CommitProducts();
      at += place.column_step;
      b_low += Shape::kGroupBytes / 16;
    }
    line += place.line_step;
  }
}

// Two teams and two others multiply in turn, so that of each pair one multiplies while the other waits for copies,
// makes pairs or stores; a team alone does not keep the tensor cores busy, since its products wait for each other. All
// teams of a block take equally many turns.
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

// One team multiplies, while the others wait for copies or store: products of one keep the tensor cores busy, and those
// of the next follow without a gap. All teams of a block take equally many turns.
class Rotation {
 public:
  KNNCONV_DEVICE Rotation(int team, int count) : team_(team), left_(count) {
    if (IsLast() && left_ > 0) ArriveAt(Id(0), 2 * kTeamThreads);
  }
  KNNCONV_DEVICE int Left() const { return left_; }
  KNNCONV_DEVICE void Take() const { SyncThreads(Id(team_), 2 * kTeamThreads); }
  KNNCONV_DEVICE void Pass() {
    --left_;
    if (!IsLast() || left_ > 0) ArriveAt(Id((team_ + 1) % kHaloTeams), 2 * kTeamThreads);
  }

 private:
  KNNCONV_DEVICE bool IsLast() const { return team_ == kHaloTeams - 1; }
  // Of the barrier where a team waits for the one before it.
  KNNCONV_DEVICE static int Id(int team) { return 1 + kHaloTeams + team; }

  const int team_;
  int left_;
};

}  // namespace knnconv::hopper
