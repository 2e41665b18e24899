// Forward of up to 4 channels on Hopper: a pixel's patch, all that its taps read, is a line in shared memory.
//
//     out[pixel, :] = round(bias + patch[pixel, (tap, channel)] @ weight[(tap, channel), :])
//
//         patches, 64 elements each           weights (all slots, for the block's life)
//         [ 64 pixels, two blocks of 8x8 ]  @  [ up to 64 deep x all columns ]
//
// A team's threads gather the patch of a pixel each, of the next tile while products of this one run. x is small and
// read from caches.
//
// What bounds it: the result once through memory, and the latency of a tile's loads.
#pragma once

#include <cstdint>

#include "gpu/launch.h"
#include "hopper/halo_patch.h"
#include "hopper/halo_products.h"
#include "hopper/halo_store.h"

namespace knnconv::hopper {

template <typename Shape, typename From>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloPatchForward(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan) {
  using T = typename Shape::T;
  extern __shared__ char unaligned[];
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  char *const patches = shared + team * plan.stage_bytes, *const weight = shared + plan.weight_at;
  int tile = block.part * kHaloTeams + team;
  const auto read = [&](int number) {
    const gpu::HaloTile at = gpu::FindTile(plan, number);
    const int in_block = thread % 64, i = thread / 64;  // a block's rows are its lines of 8 pixels
    return ReadPatch<From>(gemm, at.image, at.i + BlockDown(plan, i) * kBlockSide + in_block / kBlockSide,
                              at.j + BlockAcross(plan, i) * kBlockSide + in_block % kBlockSide,
                              number < plan.all_tiles);
  };
  Patch patch;
  StagePairWeights<Shape>(gemm, plan, block, gemm.slots, weight, [&] { patch = read(tile); });
  FillBias<Shape>(gemm, plan, block, shared);
  ClearPatch(thread, patches);
  FenceAsyncProxy();
  __syncthreads();
  const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    WritePatch<T, From>(patch, 0, thread, patches);
    FenceAsyncProxy();
    SyncThreads(1 + team, kTeamThreads);
    HaloSums<Shape> sums;
#pragma unroll
    for (auto& block_sums : sums) {
#pragma unroll
      for (float& sum : block_sums) sum = 0.0f;
    }
    const uint64_t a = Describe<Major::kK>(patches), b = DescribeCores(weight, Shape::kStepBytes / 2, 128);
#pragma unroll 1
    for (int step = 0; step < plan.steps; ++step) {
      FenceProducts();
#pragma unroll
      for (int i = 0; i < kHaloBlocks; ++i) {
        MultiplyAdd<T, Shape::kColumns, Major::kK, Major::kK>(
            sums[i], a + i * (64 * kPatchBytes / 16) + step * kDepthAdvance<Major::kK>,
            b + step * (Shape::kStepBytes / 16));
      }
      CommitProducts();
    }
    patch = read(tile + stride);
    WaitForProducts<0>();
#pragma unroll
    for (auto& block_sums : sums) PinSums(block_sums);
    SyncThreads(1 + team, kTeamThreads);
    StoreDealt<Shape>(gemm, plan, block, tile, thread, bias, sums);
  }
}

}  // namespace knnconv::hopper
