// Dense convolutions of up to 4 channels with a stride of 1 or 2 on Hopper: halo_kernel.h with pairs of pixels.
//
// The copy engine brings lines of the next tile's halo, and a team's threads make pairs of them (halo_pairs.h). The
// four teams of a multiprocessor share the weights. Results leave from registers 16 bytes at a time, since a lane's
// columns are neighbours (ColumnDeal).
#pragma once

#include <cstdint>

#include "gpu/launch.h"
#include "hopper/halo_pairs.h"
#include "hopper/halo_products.h"
#include "hopper/halo_store.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloPairKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan,
                   const __grid_constant__ CUtensorMap source) {
  using T = typename Shape::T;
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kHaloTeams];
  static_assert(sizeof(barriers) <= kHaloBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  int tile = block.part * kHaloTeams + team;
  char *const raw = shared + team * plan.stage_bytes, *const weight = shared + plan.weight_at;
  const auto load = [&](int number) {
    if (number >= plan.all_tiles) return;
    LoadLines(plan, plan.pair_lines, block.pixels.corner[0], gemm.depth, source, number, raw, &barriers[team]);
  };
  if (thread == 0) {
    barriers[team].Init(1);
    FenceBarrierInit();
    FenceAsyncProxy();
    load(tile);
  }
  __syncwarp();
  StagePairWeights<Shape>(gemm, plan, block, weight);
  FillBias<Shape>(gemm, plan, block, shared);
  FenceAsyncProxy();
  __syncthreads();
  const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
  const int halo_bytes = plan.halo[0] * plan.halo_line;
  char* const halos = shared + plan.halo_at + team * 2 * halo_bytes;
  uint32_t parity = 0;
  NoTurns no_turns;
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    barriers[team].Wait(parity);
    // The team's slowest warp may still be multiplying the halo of the last tile, none that of the tile before.
    char* const halo = halos + parity * halo_bytes;
    parity ^= 1;
    if (gemm.source_type == gpu::Element::kF32) {
      MakePairs<T, float>(plan, plan.pair_lines, gemm.depth, thread, raw, halo);
    } else {
      MakePairs<T, T>(plan, plan.pair_lines, gemm.depth, thread, raw, halo);
    }
    FenceAsyncProxy();
    SyncThreads(1 + team, kTeamThreads);
    if (thread == 0) load(tile + stride);
    __syncwarp();  // products are a whole warp's
    HaloSums<Shape> sums;
    ClearSums<Shape>(sums);
    const HaloOperands<Shape> operands(plan, block, halo, weight);
    StartProducts<Shape>(plan, block, operands, nullptr, no_turns, sums);
    WaitForSums<Shape>(sums);
    StoreDealt<Shape>(gemm, plan, block, tile, thread, bias, sums);
  }
}

}  // namespace knnconv::hopper
