// What halo kernels for dweight share: how a block's two teams add up their sums of dw, and threads those of db.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "hopper/halo_dweight_plan.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// A thread's sums of kGroups products, each of 64 columns of g and kRows rows of dw.
template <int kGroups, int kRows>
using DweightSums = float[kGroups][kRows / 2];

// Adds the thread's share of a tile of g: 8 columns, every so manyth pixel.
template <typename T>
KNNCONV_DEVICE void AddCotangent(const HaloDweightPlan& plan, const char* cotangent, int thread,
                                 float (&bias)[gpu::kHaloChunk]) {
  constexpr int kChunks = kDweightColumns / gpu::kHaloChunk;
  const int chunk = thread % kChunks, mask = plan.cotangent_bytes / 16 - 1;
  if (chunk > mask) return;
#pragma unroll 2
  for (int pixel = thread / kChunks; pixel < kDweightPixels; pixel += kTeamThreads / kChunks) {
    const int at = pixel * plan.cotangent_bytes + chunk * 16;
    union {
      uint4 bits;
      T value[gpu::kHaloChunk];
    } line{*reinterpret_cast<const uint4*>(cotangent + (at ^ (at >> 7 & mask) << 4))};  // swizzled
#pragma unroll
    for (int e = 0; e < gpu::kHaloChunk; ++e) bias[e] += gpu::ToFloat(line.value[e]);
  }
}

// Adds the two teams' sums, each one half of them, and writes them as part `part` of the result.
template <int kGroups, int kRows>
KNNCONV_DEVICE void StoreSums(const HaloDweightPlan& plan, int team, int thread, float4* scratch, float4* part,
                              const DweightSums<kGroups, kRows>& sums) {
  constexpr int kGroupUnits = kRows / 8, kUnits = kGroups * kGroupUnits, kHalf = kUnits / 2;
  const auto unit = [&](int i) {
    const float* const from = sums[i / kGroupUnits] + i % kGroupUnits * 4;
    return make_float4(from[0], from[1], from[2], from[3]);
  };
  const auto give = [&](int first) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) scratch[(first + i) * kTeamThreads + thread] = unit(first + i);
  };
  const auto take = [&](int first) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if (first + i >= plan.units) break;
      const float4 other = scratch[(first + i) * kTeamThreads + thread];
      float4 sum = unit(first + i);
      sum.x += other.x;
      sum.y += other.y;
      sum.z += other.z;
      sum.w += other.w;
      if (thread < plan.part_threads) part[(first + i) * plan.part_threads + thread] = sum;
    }
  };
  __syncthreads();
  if (team == 0) give(kHalf);
  if (team == 1) give(0);
  __syncthreads();
  if (team == 0) take(0);
  if (team == 1) take(kHalf);
}

using BiasSums = float[kDweightTeams * kTeamThreads / 32][kDweightColumns];  // of each warp

// Adds up a warp's sums of g: lanes with the same columns lie kDweightColumns / kHaloChunk apart.
KNNCONV_DEVICE void GiveBias(float (&bias)[gpu::kHaloChunk], BiasSums& sums) {
  constexpr int kChunks = kDweightColumns / gpu::kHaloChunk;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = kChunks; distance < 32; distance *= 2) {
#pragma unroll
    for (float& sum : bias) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  if (lane >= kChunks) return;
  float4* const to = reinterpret_cast<float4*>(&sums[threadIdx.x / 32][lane * gpu::kHaloChunk]);
  to[0] = make_float4(bias[0], bias[1], bias[2], bias[3]);
  to[1] = make_float4(bias[4], bias[5], bias[6], bias[7]);
}

// Writes the warps' sums, added in their order; they have given theirs.
KNNCONV_DEVICE void StoreBias(int columns, int first_column, const BiasSums& sums, float* out) {
  const int column = first_column + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kDweightColumns || column >= columns) return;
  float sum = 0.0f;
#pragma unroll
  for (const auto& of_warp : sums) sum += of_warp[threadIdx.x];
  out[column] = sum;
}

}  // namespace knnconv::hopper
