// Dense convolutions of few channels on Hopper, each tile's halo in shared memory once:
//
//     out[pixel, :] = round(bias + sum over taps f:  source[pixel's place + offset(f), :] @ weight[slot(f)])
//
//         halo of source pixels               weights (all slots, for the block's life)
//         [ . . . . . . . . ]                 [ depth (tap, channel) ]
//         [ . t t t t t t . ]  @ each step    [    x columns         ]    a warpgroup, 64 pixels x all columns x 16 deep
//         [ . t t t t t t . ]    a tap moves
//         [ . . . . . . . . ]    the address
//
// The halo lies as cores of wgmma (halo_plan.h), so that A of every tap is an address into it and nothing is copied
// twice. A team of 128 threads has tiles of its own: it copies the next halo while the tensor cores work on this one;
// four teams on a multiprocessor fill each other's gaps and share the weights. Results leave from registers 16 bytes at
// a time, since a lane's columns are neighbours (ColumnDeal).
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

template <typename T_, bool kPairs_, bool kTransposed_, int kColumns_, int kBlocks_>
struct HaloShape {
  using T = T_;
  using Deal = gpu::ColumnDeal<kColumns_ / 8>;
  static constexpr bool kPairs = kPairs_, kTransposed = kTransposed_;
  static constexpr int kColumns = kColumns_, kBlocks = kBlocks_, kThreads = kHaloTeams * kTeamThreads;
  static constexpr int kStepBytes = kStepElements * kColumns * 2;  // of weights
  static constexpr Major kMajorB = kPairs || kTransposed ? Major::kK : Major::kMN;
};

template <typename Shape>
using HaloSums = float[Shape::kBlocks][Shape::kColumns / 2];

// Blocks of the tile at `halo`.
template <typename Shape>
KNNCONV_DEVICE void MultiplyTile(const HaloPlan& plan, const uint32_t* steps, int count, const char* halo,
                                 const char* weight, HaloSums<Shape>& sums) {
  uint64_t a[Shape::kBlocks];
#pragma unroll
  for (int i = 0; i < Shape::kBlocks; ++i) {
    const int down = i / plan.blocks_across, across = i - down * plan.blocks_across;
    a[i] = DescribeCores(halo + kBlockSide * (down * plan.row_pitch + across * 16), 0, plan.row_pitch);
  }
#ifdef SWAP_MN
  uint64_t b = Shape::kMajorB == Major::kMN ? DescribeCores(weight, 128, Shape::kStepBytes / 2) : DescribeCores(weight, Shape::kStepBytes / 2, 128);
#else
  uint64_t b = DescribeCores(weight, Shape::kStepBytes / 2, 128);
#endif
#pragma unroll
  for (auto& block : sums) {
#pragma unroll
    for (float& sum : block) sum = 0.0f;
  }
  uint32_t step = steps[0];
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const uint32_t next = steps[i + 1];
    FenceProducts();
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Shape::kMajorB>(sums[block], a[block] + step, b);
    }
    b += Shape::kStepBytes / 16;
    step = next;
    CommitProducts();
    WaitForProducts<1>();
  }
  WaitForProducts<0>();
#pragma unroll
  for (auto& block : sums) PinSums(block);
}

// out = round(sums + bias). A warp has lines 2 * warp and the next of each block, a quad of lanes one pixel of each.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreTile(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, int tile_number,
                              int thread, const float* bias, const HaloSums<Shape>& sums) {
  using Deal = typename Shape::Deal;
  constexpr int kWidth = Deal::kWidth;
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int lane = thread % 32, first_line = tile.i + thread / 32 * 2, first_pixel = tile.j + lane / 4;
  Out* const image = reinterpret_cast<Out*>(block.out) + int64_t{tile.image} * gemm.nodes * gemm.columns;
#pragma unroll
  for (int group = 0; group < Deal::kGroups; ++group) {
    const int inner = group * 8 * Deal::kGroup + lane % 4 * kWidth, column = block.first_column + inner;
    float own_bias[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) own_bias[e] = bias[inner + e];
#pragma unroll
    for (int i = 0; i < Shape::kBlocks; ++i) {
      const int down = i / plan.blocks_across, across = i - down * plan.blocks_across;
      const int w = first_pixel + across * kBlockSide;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int h = first_line + down * kBlockSide + half;
        if (h >= block.size[0] || w >= block.size[1] || column >= gemm.columns) continue;
        float value[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          value[e] = sums[i][(group * Deal::kGroup + e / 2) * 4 + half * 2 + e % 2] + own_bias[e];
        }
        const int pixel = (h * plan.spacing[0] + block.residue[0]) * gemm.window.out_size[1] + w * plan.spacing[1] +
                          block.residue[1];
        gpu::StoreColumns(image + pixel * gemm.columns + column, value, gemm.columns - column);
      }
    }
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan) {
  KNNCONV_DYNAMIC_SHARED(shared);
  using T = typename Shape::T;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = threadIdx.x / kTeamThreads, thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  char* halo = shared + plan.team_at + team * plan.team_bytes;
  char* other = halo + plan.stage_at;
  const bool single = plan.stage_at == 0;
  const auto stage = [&](int tile, char* to) {
    if (tile < plan.all_tiles) gpu::StageHalo(gemm, plan, block, block.source, tile, thread, to);
    gpu::CommitCopies();
  };
  int tile = block.part * kHaloTeams + team;
  stage(tile, Shape::kPairs ? other : halo);
  FillTables<Shape>(gemm, plan, block, shared);
  if constexpr (!Shape::kPairs) {
    ClearLastChunk(plan, thread, halo);
    if (!single) ClearLastChunk(plan, thread, other);
  }
  __syncthreads();
  if constexpr (Shape::kPairs) {
    StagePairWeights<Shape>(gemm, plan, block, shared);
  } else {
    StageChunkWeights<Shape>(gemm, plan, block, shared);
  }
  FenceAsyncProxy();
  __syncthreads();
  const uint32_t* const steps = reinterpret_cast<const uint32_t*>(shared + plan.steps_at);
  const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
  const auto meet = [&] { SyncThreads(1 + team, kTeamThreads); };
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    gpu::WaitForCopies<0>();
    if constexpr (Shape::kPairs) {
      meet();  // also, all warps are done with the halo
      const gpu::HaloPlace place = gpu::PlaceOfHalo(gemm, plan, block, block.source, tile);
      if (gemm.source_type == gpu::Element::kF32) {
        PlacePairs<T, float>(gemm, plan, place, thread, other, halo);
      } else {
        PlacePairs<T, T>(gemm, plan, place, thread, other, halo);
      }
    }
    FenceAsyncProxy();
    meet();  // with chunks, also, all warps are done with the other halo
    if (!single) stage(tile + stride, other);
    HaloSums<Shape> sums;
    MultiplyTile<Shape>(plan, steps, block.steps, halo, shared + plan.weight_at, sums);
    if (single) {
      meet();
      stage(tile + stride, halo);
    }
    if (gemm.out_type == gpu::Element::kF32) {
      StoreTile<Shape, float>(gemm, plan, block, tile, thread, bias, sums);
    } else if (gemm.out_type == gpu::Element::kF16) {
      StoreTile<Shape, gpu::Half>(gemm, plan, block, tile, thread, bias, sums);
    } else {
      StoreTile<Shape, gpu::BFloat>(gemm, plan, block, tile, thread, bias, sums);
    }
    if (Shape::kPairs || single) continue;
    char* const swap = halo;
    halo = other;
    other = swap;
  }
}

}  // namespace knnconv::hopper
