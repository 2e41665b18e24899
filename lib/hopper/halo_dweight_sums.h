// What halo kernels for dweight share: how a block's two teams add up their sums of dw, and threads those of db.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "hopper/halo_dweight_plan.h"

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

// Writes the columns of g that threads have added up, in the threads' order.
KNNCONV_DEVICE void StoreBias(const gpu::Dweight& dweight, float* out, int first_column, float* scratch,
                              const float (&bias)[gpu::kHaloChunk]) {
  constexpr int kChunks = kDweightColumns / gpu::kHaloChunk, kShares = kDweightTeams * kTeamThreads / kChunks;
  float* const line = scratch + threadIdx.x / kChunks * kDweightColumns + threadIdx.x % kChunks * gpu::kHaloChunk;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < gpu::kHaloChunk; ++e) line[e] = bias[e];
  __syncthreads();
  const int column = first_column + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kDweightColumns || column >= dweight.columns) return;
  float sum = 0.0f;
  for (int share = 0; share < kShares; ++share) sum += scratch[share * kDweightColumns + threadIdx.x];
  out[column] = sum;
}

}  // namespace knnconv::hopper
