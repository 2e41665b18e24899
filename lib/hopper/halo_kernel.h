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
// twice. A team of 128 threads has tiles of its own, whose halos the copy engine brings ahead, as it takes results
// away. The four teams of a multiprocessor share the weights and multiply in turn.
//
// What bounds it: source and result once through memory; below 64 columns, A's way from shared memory.
#pragma once

#include <cstdint>

#include "gpu/launch.h"
#include "hopper/halo_map.h"
#include "hopper/halo_products.h"
#include "hopper/halo_store.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan,
               const __grid_constant__ HaloMaps maps) {
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kHaloTeams][kHaloStages];
  __shared__ Barrier weight_parts[kWeightParts];
  static_assert(sizeof(barriers) + sizeof(weight_parts) == kHaloBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  if (threadIdx.x == 0) {
    for (auto& of_team : barriers) {
      for (Barrier& barrier : of_team) barrier.Init(1);
    }
    for (int i = 0; i < kWeightParts; ++i) weight_parts[i].Init(i < kWeightParts - 1 ? 1 : max(block.lines - i, 1));
    FenceBarrierInit();
    FenceAsyncProxy();
  }
  float bias[Shape::kColumns / 4];  // of the thread's columns
#pragma unroll
  for (int e = 0; e < Shape::kColumns / 4; ++e) {
    const int column = block.first_column + e / 2 * 8 + thread % 4 * 2 + e % 2;
    bias[e] = gemm.bias != nullptr && column < gemm.columns ? gemm.bias[column] : 0.0f;
  }
  __syncthreads();
  char* const stages = shared + team * plan.stages * plan.stage_bytes;
  char* const results = shared + plan.results_at + team * plan.results_pitch + thread / 32 * plan.warp_results;
  const auto load = [&](int number, int to_stage) {
    if (number >= plan.all_tiles) return;
    LoadHalo(plan, block, maps.source, number, stages + to_stage * plan.stage_bytes, &barriers[team][to_stage]);
  };
  // Each team brings its own halos and every so manyth line of weights.
  int tile = block.part * kHaloTeams + team;
  if (thread == 32) {
#pragma unroll 1
    for (int line = team; line < block.lines; line += kHaloTeams) {
      LoadWeightLine<Shape>(gemm, block, maps.weight, line, shared + plan.weight_at,
                            &weight_parts[min(line, kWeightParts - 1)]);
    }
  }
  if (thread == 0) load(tile, 0);
  __syncwarp();
  // Teams ask for a second tile when they have their first: these would keep each other waiting.
  int stage = 0;
  uint32_t parity = 0;
  const int first_tile = block.part * kHaloTeams;  // of the block: no team has more tiles than the first
  Turns turns(team, (plan.all_tiles - first_tile + stride - 1) / stride);
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    HaloSums<Shape> sums;
    ClearSums<Shape>(sums);
    const HaloOperands<Shape> operands(plan, block, stages + stage * plan.stage_bytes, shared + plan.weight_at);
    barriers[team][stage].Wait(parity);
    if (plan.stages > 1 && thread == 0) load(tile + stride, stage ^ 1);
    __syncwarp();  // products are a whole warp's
    turns.Take();
    StartProducts<Shape>(plan, block, operands, weight_parts, turns, sums);
    WaitForSums<Shape>(sums);
    SyncThreads(1 + team, kTeamThreads);  // the halo is read
    const auto load_behind = [&] {
      if (plan.stages == 1 && thread == 0) load(tile + stride, stage);
      __syncwarp();
    };
    if (!plan.results_in_halo) load_behind();
    StoreBoxes<Shape>(gemm, plan, block, maps.out[block.pixel_class], tile, thread, bias, sums, results);
    if (plan.results_in_halo) {
      if (thread % 32 == 0) WaitForStoresToRead<0>();
      SyncThreads(1 + team, kTeamThreads);
      load_behind();
    }
    if (++stage == plan.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (turns.Left() > 0) {
    turns.Take();
    turns.Pass();
  }
  if (thread % 32 == 0) WaitForStoresToRead<0>();
}

}  // namespace knnconv::hopper
