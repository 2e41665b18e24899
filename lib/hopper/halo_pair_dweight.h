// Weight gradients of up to 3 channels with a stride of 1 or 2 on Hopper: halo_dweight_kernel.h with pairs of pixels.
//
//     dw[tap, c, o] = sum over pixels p:  x[p's place + offset(tap), c] * g[p, o]
//     db[o] = sum over pixels p:  1 * g[p, o]
//
//         rows o              columns: two taps beside each other, 4 channels each; the two below; ...
//         [ g's tile ]^T  @  [ pairs of x's halo, moved by the taps ]        depth: 16 pixels a step
//
// The next pixel's pair is the next pair (halo_plan.h), so that 8 pixels' pairs are a core of wgmma's B, and two taps
// further to the right move its address by 16 or 32 bytes. A team's threads make pairs of the next halo (halo_pairs.h)
// while products run; lines and g come by the copy engine, tiles ahead. The fourth channel is 1 under each pair's first
// pixel, which makes db another row of dw.
//
// What bounds it: g once through memory, and products: of 7x7 taps, 16 pixels take 120 cycles.
#pragma once

#include <cstdint>

#include "gpu/launch.h"
#include "hopper/halo_dweight_plan.h"
#include "hopper/halo_dweight_sums.h"
#include "hopper/halo_pairs.h"
#include "hopper/halo_patch.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

// Starts a tile's products, and leaves them running. Pairs of taps that dw lacks repeat the first, and are not stored.
template <typename T, int kGroups, int kRows>
KNNCONV_DEVICE void StartProducts(const HaloDweightPlan& plan, const char* pairs, const char* cotangent,
                                  DweightSums<kGroups, kRows>& sums) {
  const uint64_t a = DescribeLines(cotangent, plan.cotangent_bytes, 8 * plan.cotangent_bytes);
  const uint64_t b = DescribeCores(pairs, plan.half_pitch, plan.tap_pitch);
  uint32_t a_low = Uniform(a), b_low = Uniform(b);
  const uint32_t a_high = Uniform(a >> 32), b_high = Uniform(b >> 32);
  const uint32_t pair_step = 2 / plan.step[1];
  const uint32_t next_a = plan.cotangent_bytes, next_b = plan.step_pitch / 16;  // 16 pixels in units of 16 bytes
#pragma unroll 1
  for (int step = 0; step < kDweightSteps; ++step) {
    FenceProducts();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const uint32_t beside = 2 * i < plan.taps_across ? i * pair_step : 0;
      MultiplyAdd<T, kRows, Major::kMN, Major::kMN>(sums[i], Join(a_low, a_high), Join(b_low + beside, b_high));
    }
    a_low += next_a;
    b_low += next_b;
    CommitProducts();
  }
}

template <typename T, typename From, int kGroups, int kTapsDown, int kBlocks>
__global__ void __launch_bounds__(kDweightTeams* kTeamThreads, kBlocks)
    HaloPairDweight(const __grid_constant__ gpu::Dweight dweight, const __grid_constant__ HaloDweightPlan plan,
                    const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap g) {
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kDweightTeams][kDweightStages], line_barriers[kDweightTeams][kPairStages];
  static_assert(sizeof(barriers) + sizeof(line_barriers) <= kDweightBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const int slice = static_cast<int>(blockIdx.x / plan.column_tiles);
  const int first_column = static_cast<int>(blockIdx.x % plan.column_tiles) * kDweightColumns;
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.slices) * kDweightTeams;
  char* const stages = shared + team * plan.stages * plan.stage_bytes;
  // Two halos of pairs, and two of raw lines.
  char* const pairs = shared + plan.pairs_at + team * kPairStages * (plan.pair_bytes + plan.raw_room);
  char* const raw = pairs + kPairStages * plan.pair_bytes;
  int tile = slice * kDweightTeams + team;
  const auto load = [&](int number, int stage) {
    if (number >= plan.all_tiles) return;
    const gpu::HaloTile at = gpu::FindTile(plan, number);
    barriers[team][stage].ArriveExpecting(plan.copied_bytes);
    LoadBox(stages + stage * plan.stage_bytes, &g, &barriers[team][stage], first_column, at.j, at.i, at.image);
  };
  const auto load_lines = [&](int number, int half) {
    if (number >= plan.all_tiles) return;
    LoadLines(plan, plan.pair_lines, plan.origin[0], dweight.channels, x, number, raw + half * plan.raw_room,
              &line_barriers[team][half]);
  };
  LaunchDependents();  // they find room when blocks of this kernel end
  if (thread == 0) {
    for (Barrier& barrier : barriers[team]) barrier.Init(1);
    for (Barrier& barrier : line_barriers[team]) barrier.Init(1);
    FenceBarrierInit();
    FenceAsyncProxy();
    for (int half = 0; half < kPairStages; ++half) load_lines(tile + half * stride, half);
    for (int stage = 0; stage < plan.stages; ++stage) load(tile + stage * stride, stage);
  }
  const uint32_t one = RoundBits<T, float>(__float_as_uint(1.0f));
  int half = 0;
  uint32_t line_parity = 0;
  // Makes pairs in half `half`, and then asks for the lines that take the place of those.
  const auto make = [&](int number) {
    if (number < plan.all_tiles) {
      line_barriers[team][half].Wait(line_parity);
      MakePairs<T, From>(plan, plan.pair_lines, dweight.channels, thread, raw + half * plan.raw_room,
                         pairs + half * plan.pair_bytes, one);
    }
    FenceAsyncProxy();
  };
  const auto made = [&](int number) {
    if (thread == 0) load_lines(number + kPairStages * stride, half);
    half ^= 1;
    if (half == 0) line_parity ^= 1;
  };
  __syncthreads();
  make(tile);
  SyncThreads(1 + team, kTeamThreads);
  made(tile);
  DweightSums<kGroups, kTapsDown * 8> sums = {};
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    barriers[team][stage].Wait(parity);
    __syncwarp();  // products are a whole warp's
    const char* const cotangent = stages + stage * plan.stage_bytes;
    StartProducts<T, kGroups, kTapsDown * 8>(plan, pairs + (half ^ 1) * plan.pair_bytes, cotangent, sums);
    make(tile + stride);
    WaitForProducts<0>();
#pragma unroll
    for (auto& group : sums) PinSums(group);
    SyncThreads(1 + team, kTeamThreads);
    made(tile + stride);
    if (thread == 0) load(tile + plan.stages * stride, stage);
    if (++stage == plan.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  const auto unit = [&](int i) { return UnitOf(sums[i / kTapsDown], i % kTapsDown); };
  StoreSums<kGroups * kTapsDown>(plan, team, thread, unit, shared, dweight.partials);
}

}  // namespace knnconv::hopper
