// Dense convolutions of few channels on Hopper, each tile's halo in shared memory once:
//
//     out[pixel, :] = round(bias + sum over taps f:  source[pixel's place + offset(f), :] @ weight[slot(f)])
//
//         halo of source pixels               weights (all slots, for the block's life)
//         [ . . . . . . . . ]                 [ depth (tap, channel) ]
//         [ . t t t t t t . ]  @ each step    [    x columns         ]    a warpgroup: 64 pixels x all columns x 16
//         [ . t t t t t t . ]    a tap moves
//         [ . . . . . . . . ]    the address
//
// The halo lies as wgmma reads it (halo_plan.h), so that A of every tap is an address into it and nothing is copied
// twice. A team of 128 threads has tiles of its own, whose halos the copy engine brings ahead. The four teams of a
// multiprocessor share the weights and multiply in turn. Results leave from registers 16 bytes at a time, since a
// lane's columns are neighbours (ColumnDeal).
//
// What bounds it: source and result once through memory.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "gpu/launch.h"
#include "hopper/halo_stage.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename T_, bool kPairs_, bool kTransposed_, int kColumns_>
struct HaloShape {
  using T = T_;
  using Deal = gpu::ColumnDeal<kColumns_ / 8>;
  static constexpr bool kPairs = kPairs_, kTransposed = kTransposed_;
  static constexpr int kColumns = kColumns_, kThreads = kHaloTeams * kTeamThreads;
  static constexpr int kStepBytes = kHaloDepth * kColumns * 2;  // of weights
  static constexpr Major kMajorB = kPairs || kTransposed ? Major::kK : Major::kMN;
};

template <typename Shape>
using HaloSums = float[kHaloBlocks][Shape::kColumns / 2];

// Of a tile's blocks, which one is how many blocks down and across.
KNNCONV_DEVICE int BlockDown(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? block : 0; }
KNNCONV_DEVICE int BlockAcross(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? 0 : block; }

// Starts the products of the tile at `halo`, and leaves the last of them running.
template <typename Shape>
KNNCONV_DEVICE void StartProducts(const HaloPlan& plan, const uint32_t* steps, int count, const char* halo,
                                  const char* weight, HaloSums<Shape>& sums) {
  uint64_t a[kHaloBlocks];
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int at = BlockDown(plan, i) * plan.row_pitch + BlockAcross(plan, i) * plan.pixel_bytes;
    a[i] = Shape::kPairs ? DescribeCores(halo + kBlockSide * at, 0, plan.row_pitch)
                         : DescribeLines(halo + kBlockSide * at, plan.pixel_bytes, plan.row_pitch);
  }
  uint64_t b = DescribeCores(weight, Shape::kStepBytes / 2, 128);
  uint32_t step = steps[0];
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const uint32_t next = steps[i + 1];
    FenceProducts();
#pragma unroll
    for (int block = 0; block < kHaloBlocks; ++block) {
      MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Shape::kMajorB>(sums[block], a[block] + step, b);
    }
    b += Shape::kStepBytes / 16;
    step = next;
    CommitProducts();
    WaitForProducts<2>();
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

// out = round(sums + bias). A warp has lines 2 * warp and the next of each block, a quad of lanes one pixel of each.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreTile(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, int tile_number,
                              int thread, const float* bias, const HaloSums<Shape>& sums) {
  using Deal = typename Shape::Deal;
  constexpr int kWidth = Deal::kWidth;
  const PixelClass& pixels = block.pixels;
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int lane = thread % 32, first_line = tile.i + thread / 32 * 2, first_pixel = tile.j + lane / 4;
  const int first_column = block.first_column + lane % 4 * kWidth;
  Out* const image = static_cast<Out*>(gemm.out) + int64_t{tile.image} * gemm.nodes * gemm.columns + first_column;
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int w = first_pixel + BlockAcross(plan, i) * kBlockSide;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = first_line + BlockDown(plan, i) * kBlockSide + half;
      if (h >= pixels.size[0] || w >= pixels.size[1]) continue;
      const int pixel = (h * plan.spacing[0] + pixels.residue[0]) * gemm.window.out_size[1] + w * plan.spacing[1] +
                        pixels.residue[1];
      Out* const out = image + pixel * gemm.columns;
#pragma unroll
      for (int group = 0; group < Deal::kGroups; ++group) {
        constexpr int kGroupColumns = 8 * Deal::kGroup;
        const int left = gemm.columns - first_column - group * kGroupColumns;
        float value[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          value[e] = sums[i][(group * Deal::kGroup + e / 2) * 4 + half * 2 + e % 2] +
                     bias[group * kGroupColumns + lane % 4 * kWidth + e];
        }
        gpu::StoreColumns(out + group * kGroupColumns, value, left);
      }
    }
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan,
               const __grid_constant__ CUtensorMap source) {
  using T = typename Shape::T;
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kHaloTeams][kHaloStages];
  static_assert(sizeof(barriers) == kHaloBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = threadIdx.x / kTeamThreads, thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  char* const stages = shared + team * plan.stages * plan.stage_bytes;
  int tile = block.part * kHaloTeams + team;
  gpu::HaloTaps taps{};  // for copies by threads
  for (int d = 0; d < 2; ++d) taps.origin[d] = block.pixels.corner[d];
  const char* const from = static_cast<const char*>(gemm.source);
  // Lines: by one thread, which the copy engine answers through the stage's barrier. Pairs: by all.
  const auto load = [&](int number, int stage) {
    if constexpr (Shape::kPairs) {
      if (number < plan.all_tiles) gpu::StageHalo(gemm, plan, taps, from, number, thread, stages);
      gpu::CommitCopies();
    } else {
      if (thread != 0 || number >= plan.all_tiles) return;
      LoadHalo(plan, block, source, number, stages + stage * plan.stage_bytes, &barriers[team][stage]);
    }
  };
  // Weights first: behind halos they would arrive late.
  const auto load_first = [&] {
    if (!Shape::kPairs && thread == 0) {
      for (Barrier& barrier : barriers[team]) barrier.Init(1);
      FenceBarrierInit();
      FenceAsyncProxy();
    }
    load(tile, 0);
  };
  char* const weight = shared + plan.weight_at;
  if constexpr (Shape::kPairs) {
    StagePairWeights<Shape>(gemm, plan, block, weight, load_first);
  } else {
    StageLineWeights<Shape>(gemm, plan, block, weight, load_first);
  }
  FillTables<Shape>(gemm, plan, block, shared);
  FenceAsyncProxy();
  __syncthreads();
  for (int stage = 1; stage < plan.stages; ++stage) load(tile + stage * stride, stage);
  __syncwarp();  // products are a whole warp's
  const uint32_t* const steps = reinterpret_cast<const uint32_t*>(shared + plan.steps_at);
  const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
  const int halo_bytes = plan.halo[0] * plan.halo_line;
  char* const halos = shared + plan.halo_at + team * 2 * halo_bytes;
  const int first_tile = block.part * kHaloTeams;  // of the block: no team has more tiles than the first
  Turns turns(team, (plan.all_tiles - first_tile + stride - 1) / stride);
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (; turns.Left() > 0; tile += stride) {
    if (tile >= plan.all_tiles) {
      turns.Take();
      turns.Pass();
      break;
    }
    const char* halo = stages + stage * plan.stage_bytes;
    if constexpr (Shape::kPairs) {
      gpu::WaitForCopies<0>();
      SyncThreads(1 + team, kTeamThreads);
      // The team's slowest warp may still be multiplying the halo of the last turn, none that of the turn before.
      char* const pairs = halos + (turns.Left() & 1) * halo_bytes;
      const gpu::HaloPlace place = gpu::PlaceOfHalo(gemm, plan, taps, from, tile);
      if (gemm.source_type == gpu::Element::kF32) {
        MakePairs<T, float>(gemm, plan, place, thread, halo, pairs);
      } else {
        MakePairs<T, T>(gemm, plan, place, thread, halo, pairs);
      }
      FenceAsyncProxy();
      SyncThreads(1 + team, kTeamThreads);
      load(tile + stride, 0);
      __syncwarp();
      halo = pairs;
    } else {
      barriers[team][stage].Wait(parity);
    }
    HaloSums<Shape> sums;
#pragma unroll
    for (auto& block_sums : sums) {
#pragma unroll
      for (float& sum : block_sums) sum = 0.0f;
    }
    turns.Take();
    StartProducts<Shape>(plan, steps, block.steps, halo, weight, sums);
    turns.Pass();
    WaitForProducts<0>();
#pragma unroll
    for (auto& block_sums : sums) PinSums(block_sums);
    if constexpr (!Shape::kPairs) {
      SyncThreads(1 + team, kTeamThreads);
      load(tile + plan.stages * stride, stage);
      __syncwarp();
      if (++stage == plan.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (gemm.out_type == gpu::Element::kF32) {
      StoreTile<Shape, float>(gemm, plan, block, tile, thread, bias, sums);
    } else if (gemm.out_type == gpu::Element::kF16) {
      StoreTile<Shape, gpu::Half>(gemm, plan, block, tile, thread, bias, sums);
    } else {
      StoreTile<Shape, gpu::BFloat>(gemm, plan, block, tile, thread, bias, sums);
    }
  }
}

}  // namespace knnconv::hopper
