// Weight gradients of few channels on Hopper, each tile's halo of x and its pixels of g in shared memory once:
//
//     dw[tap, c, o] = sum over pixels p:  x[p's place + offset(tap), c] * g[p, o]
//     db[o] = sum over pixels p:  1 * g[p, o]
//
//         rows o              columns (tap, channel)
//         [ g's tile ]^T  @  [ x's halo, moved by the tap ]        depth: 16 pixels a step
//
// Both operands lie as the copy engine writes them and wgmma reads them, pixels along the depth: a tap moves the
// address of x and nothing is copied twice. A team of 128 threads holds dw for 64 columns in registers, all of it or a
// kind's share, while it walks over its tiles; at the end a block's two teams are added up, and a second kernel adds up
// the blocks (halo_dweight_reduce.h). db is a product with ones.
//
// What bounds it: x and g once through memory, and products of 64 rows where g has fewer columns.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "gpu/launch.h"
#include "hopper/halo_dweight_plan.h"
#include "hopper/halo_dweight_sums.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

// `bias`: of g's columns, eight times the same.
template <int kGroups, int kRows>
struct HaloDweightSums {
  DweightSums<kGroups, kRows> weight;
  float bias[4];
};

// Loads a tile's halo and its pixels of g to a stage. By one thread.
KNNCONV_DEVICE void LoadStage(const HaloDweightPlan& plan, const CUtensorMap& x, const CUtensorMap& g,
                              int first_column, int tile_number, char* to, Barrier* full) {
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  full->ArriveExpecting(plan.copied_bytes);
  LoadBox(to, &x, full, 0, tile.j * plan.step[1] + plan.origin[1], tile.i * plan.step[0] + plan.origin[0],
          tile.image);
  LoadBox(to + plan.halo_room, &g, full, first_column, tile.j, tile.i, tile.image);
}

// Starts a tile's products, and leaves them running. `first_group`: of the block's kind, the first of which sums g.
template <typename T, int kGroups, int kRows>
KNNCONV_DEVICE void StartProducts(const gpu::TapGemm& forward, const HaloDweightPlan& plan, const char* stage,
                                  const char* ones, int first_group, HaloDweightSums<kGroups, kRows>& sums) {
  const uint64_t a = DescribeLines(stage + plan.halo_room, plan.cotangent_bytes, 8 * plan.cotangent_bytes);
  const uint64_t b = DescribeLines(stage, plan.pixel_bytes, plan.half_pitch, plan.tap_pitch);
  const uint32_t first_a = Uniform(a), a_high = Uniform(a >> 32), b_high = Uniform(b >> 32);
  uint32_t a_low = first_a, b_low[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    // Groups that dw lacks repeat others, and are not stored.
    const int group = first_group + i, column = plan.pieces == 1 ? group : group / plan.pieces;
    const int across = column < forward.window.kernel[1] ? column : 0, piece = group - column * plan.pieces;
    const int at = across * forward.window.dilation[1] * plan.pixel_bytes + piece * plan.taps_of_group * plan.tap_pitch;
    b_low[i] = Uniform(b + at / 16);
  }
  const uint32_t next_a = plan.cotangent_bytes, next_b = plan.step_pitch / 16;  // 16 pixels in units of 16 bytes
#pragma unroll 1
  for (int step = 0; step < kDweightSteps; ++step) {
    FenceProducts();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      MultiplyAdd<T, kRows, Major::kMN, Major::kMN>(sums.weight[i], Join(a_low, a_high), Join(b_low[i], b_high));
      b_low[i] += next_b;
    }
    a_low += next_a;
    CommitProducts();
  }
  a_low = first_a;
#pragma unroll 1
  for (int step = first_group == 0 ? 0 : kDweightSteps; step < kDweightSteps; ++step) {
    FenceProducts();
    MultiplyAdd<T, 8, Major::kMN, Major::kMN>(sums.bias, Join(a_low, a_high), DescribeCores(ones, 128, 128));
    a_low += next_a;
    CommitProducts();
  }
}

template <typename T, int kGroups, int kRows>
__global__ void __launch_bounds__(kDweightTeams* kTeamThreads, 1)
    HaloDweightKernel(const __grid_constant__ gpu::Dweight dweight, const __grid_constant__ gpu::TapGemm forward,
                      const __grid_constant__ HaloDweightPlan plan, const __grid_constant__ CUtensorMap x,
                      const __grid_constant__ CUtensorMap g) {
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kDweightTeams][kDweightStages];
  __shared__ alignas(16) T ones[kOnes];
  static_assert(sizeof(barriers) + sizeof(ones) == kDweightBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const int first_group = static_cast<int>(blockIdx.x % plan.kinds) * kGroups;
  const int part = static_cast<int>(blockIdx.x / plan.kinds), slice = part / static_cast<int>(plan.column_tiles);
  const int first_column = (part - slice * static_cast<int>(plan.column_tiles)) * kDweightColumns;
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.slices) * kDweightTeams;
  char* const stages = shared + team * plan.stages * plan.stage_bytes;
  int tile = slice * kDweightTeams + team;
  const auto load = [&](int number, int stage) {
    if (number >= plan.all_tiles) return;
    LoadStage(plan, x, g, first_column, number, stages + stage * plan.stage_bytes, &barriers[team][stage]);
  };
  LaunchDependents();  // they find room when blocks of this kernel end
  if (thread == 0) {
    for (Barrier& barrier : barriers[team]) barrier.Init(1);
    FenceBarrierInit();
    FenceAsyncProxy();
    for (int stage = 0; stage < plan.stages; ++stage) load(tile + stage * stride, stage);
  }
  for (int i = threadIdx.x; i < kOnes; i += kDweightTeams * kTeamThreads) ones[i] = gpu::FromFloat<T>(1.0f);
  FenceAsyncProxy();
  __syncthreads();
  HaloDweightSums<kGroups, kRows> sums = {};
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    barriers[team][stage].Wait(parity);
    const char* const at = stages + stage * plan.stage_bytes;
    StartProducts<T>(forward, plan, at, reinterpret_cast<const char*>(ones), first_group, sums);
    WaitForProducts<0>();
#pragma unroll
    for (auto& group : sums.weight) PinSums(group);
    PinSums(sums.bias);
    SyncThreads(1 + team, kTeamThreads);
    if (thread == 0) load(tile + plan.stages * stride, stage);
    __syncwarp();  // products are a whole warp's
    if (++stage == plan.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  constexpr int kGroupUnits = kRows / 8, kUnits = kGroups * kGroupUnits;
  // Sums of g follow the groups that dw has.
  const auto unit = [&](int i) {
    const float4 of_weight = i < kUnits ? UnitOf(sums.weight[i / kGroupUnits], i % kGroupUnits) : float4{};
    return i == plan.units - 1 ? UnitOf(sums.bias, 0) : of_weight;
  };
  StoreSums<kUnits + 1>(plan, team, thread, unit, shared, dweight.partials);
}

}  // namespace knnconv::hopper
