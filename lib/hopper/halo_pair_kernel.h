// Dense convolutions of up to 4 channels with a stride of 2 on Hopper: halo_kernel.h with pairs of pixels.
//
// A team's threads copy lines of the next tile's halo as they lie in memory, and make pairs of them (halo_plan.h). The
// four teams of a multiprocessor share the weights and multiply in turn. Results leave from registers 16 bytes at a
// time, since a lane's columns are neighbours (ColumnDeal).
#pragma once

#include <cstdint>

#include "gpu/launch.h"
#include "hopper/halo_products.h"
#include "hopper/halo_store.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloPairKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan) {
  using T = typename Shape::T;
  extern __shared__ char unaligned[];
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  int tile = block.part * kHaloTeams + team;
  gpu::HaloTaps taps{};
  for (int d = 0; d < 2; ++d) taps.origin[d] = block.pixels.corner[d];
  const char* const from = static_cast<const char*>(gemm.source);
  char *const raw = shared + team * plan.stage_bytes, *const weight = shared + plan.weight_at;
  const auto load = [&](int number) {
    if (number < plan.all_tiles) gpu::StageHalo(gemm, plan, taps, from, number, thread, raw);
    gpu::CommitCopies();
  };
  StagePairWeights<Shape>(gemm, plan, block, weight, [&] { load(tile); });
  FillBias<Shape>(gemm, plan, block, shared);
  FenceAsyncProxy();
  __syncthreads();
  const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
  const int halo_bytes = plan.halo[0] * plan.halo_line;
  char* const halos = shared + plan.halo_at + team * 2 * halo_bytes;
  const int first_tile = block.part * kHaloTeams;  // of the block: no team has more tiles than the first
  Turns turns(team, (plan.all_tiles - first_tile + stride - 1) / stride);
#pragma unroll 1
  for (; turns.Left() > 0; tile += stride) {
    if (tile >= plan.all_tiles) {
      turns.Take();
      turns.Pass();
      break;
    }
    gpu::WaitForCopies<0>();
    SyncThreads(1 + team, kTeamThreads);
    // The team's slowest warp may still be multiplying the halo of the last turn, none that of the turn before.
    char* const halo = halos + (turns.Left() & 1) * halo_bytes;
    const gpu::HaloPlace place = gpu::PlaceOfHalo(gemm, plan, taps, from, tile);
    if (gemm.source_type == gpu::Element::kF32) {
      MakePairs<T, float>(gemm, plan, place, thread, raw, halo);
    } else {
      MakePairs<T, T>(gemm, plan, place, thread, raw, halo);
    }
    FenceAsyncProxy();
    SyncThreads(1 + team, kTeamThreads);
    load(tile + stride);
    __syncwarp();  // products are a whole warp's
    HaloSums<Shape> sums;
#pragma unroll
    for (auto& block_sums : sums) {
#pragma unroll
      for (float& sum : block_sums) sum = 0.0f;
    }
    const HaloOperands<Shape> operands(plan, block, halo, weight);
    turns.Take();
    StartProducts<Shape>(plan, block, operands, nullptr, turns, sums);
    WaitForProducts<0>();
#pragma unroll
    for (auto& block_sums : sums) PinSums(block_sums);
    StoreDealt<Shape>(gemm, plan, block, tile, thread, bias, sums);
  }
}

}  // namespace knnconv::hopper
