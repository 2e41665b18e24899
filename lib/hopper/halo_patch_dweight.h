// Weight gradients of up to 4 channels on Hopper: a pixel's patch, all that its taps read, is a line in shared memory.
//
//     dw[tap, c, o] = sum over pixels p:  patch[p, tap, c] * g[p, o]
//     db[o] = sum over pixels p:  1 * g[p, o]
//
//         rows o              columns (tap, channel)
//         [ g's tile ]^T  @  [ patches, 64 elements each ]        depth: 16 pixels a step
//
// A team's threads gather the patch of a pixel each, of the next tile while products of this one run; g comes by the
// copy engine, tiles ahead. x is small and read from caches. A 1 behind each patch makes db another row of dw.
//
// What bounds it: g once through memory, and the latency of a tile's loads.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "gpu/launch.h"
#include "hopper/halo_dweight_plan.h"
#include "hopper/halo_dweight_sums.h"
#include "hopper/halo_patch.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

using PatchSums = DweightSums<1, kPatchRows>;

template <typename T, typename From>
__global__ void __launch_bounds__(kDweightTeams* kTeamThreads, 2)
    HaloPatchDweight(const __grid_constant__ gpu::Dweight dweight, const __grid_constant__ gpu::TapGemm forward,
                     const __grid_constant__ HaloDweightPlan plan, const __grid_constant__ CUtensorMap g) {
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kDweightTeams][kDweightStages];
  static_assert(sizeof(barriers) <= kDweightBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const int slice = static_cast<int>(blockIdx.x / plan.column_tiles);
  const int first_column = static_cast<int>(blockIdx.x % plan.column_tiles) * kDweightColumns;
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.slices) * kDweightTeams;
  char* const patches = shared + team * kTilePatchBytes;
  char* const stages = shared + kDweightTeams * kTilePatchBytes + team * plan.stages * plan.stage_bytes;
  int tile = slice * kDweightTeams + team;
  const auto load = [&](int number, int stage) {
    if (number >= plan.all_tiles) return;
    const gpu::HaloTile at = gpu::FindTile(plan, number);
    barriers[team][stage].ArriveExpecting(plan.copied_bytes);
    LoadBox(stages + stage * plan.stage_bytes, &g, &barriers[team][stage], first_column, at.j, at.i, at.image);
  };
  LaunchDependents();  // they find room when blocks of this kernel end
  if (thread == 0) {
    for (Barrier& barrier : barriers[team]) barrier.Init(1);
    FenceBarrierInit();
    FenceAsyncProxy();
    for (int stage = 0; stage < plan.stages; ++stage) load(tile + stage * stride, stage);
  }
  __syncthreads();
  ClearPatch(thread, patches);
  const uint32_t one = RoundBits<T, float>(__float_as_uint(1.0f));
  PatchSums sums = {};
  int stage = 0;
  uint32_t parity = 0;
  const auto read = [&](int number) {
    const gpu::HaloTile at = gpu::FindTile(plan, number);
    const gpu::Divisor::Result pixel = plan.by_width.Divide(thread);
    return ReadPatch<From>(forward, at.image, at.i + pixel.quotient, at.j + pixel.remainder,
                           number < plan.all_tiles);
  };
  Patch patch = read(tile);
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    WritePatch<T, From>(patch, one, thread, patches);
    FenceAsyncProxy();
    SyncThreads(1 + team, kTeamThreads);
    barriers[team][stage].Wait(parity);
    const char* const cotangent = stages + stage * plan.stage_bytes;
    const uint64_t a = DescribeLines(cotangent, plan.cotangent_bytes, 8 * plan.cotangent_bytes);
    const uint64_t b = Describe<Major::kMN>(patches);
    FenceProducts();
#pragma unroll
    for (int step = 0; step < kDweightSteps; ++step) {
      MultiplyAdd<T, kPatchRows, Major::kMN, Major::kMN>(sums[0], a + step * plan.cotangent_bytes,
                                                         b + step * kDepthAdvance<Major::kMN>);
    }
    CommitProducts();
    patch = read(tile + stride);
    WaitForProducts<0>();
    PinSums(sums[0]);
    SyncThreads(1 + team, kTeamThreads);
    if (thread == 0) load(tile + plan.stages * stride, stage);
    __syncwarp();  // products are a whole warp's
    if (++stage == plan.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  const auto unit = [&](int i) { return UnitOf(sums[0], i); };
  StoreSums<kPatchRows / 8>(plan, team, thread, unit, shared, dweight.partials);
}

}  // namespace knnconv::hopper
