// What halo kernels for dweight share: how a block's two teams add up their sums and write them.
#pragma once

#include <cstdint>

#include "hopper/halo_dweight_plan.h"

namespace knnconv::hopper {

// A thread's sums of kGroups products, each of 64 columns of g and kRows rows of dw. Four of them are a unit: two rows,
// two columns.
template <int kGroups, int kRows>
using DweightSums = float[kGroups][kRows / 2];

template <int kCount>
KNNCONV_DEVICE float4 UnitOf(const float (&sums)[kCount], int i) {
  return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}

// Adds the two teams' sums, unit(i) for i < kUnits, each team one half of them, and writes those that exist as the
// block's part of the result. What lay in `shared` before is lost.
template <int kUnits, typename Unit>
KNNCONV_DEVICE void StoreSums(const HaloDweightPlan& plan, int team, int thread, const Unit& unit, char* shared,
                              float* partials) {
  constexpr int kHalf = kUnits / 2;
  float4* const scratch = reinterpret_cast<float4*>(shared) + thread;
  float4* const part = reinterpret_cast<float4*>(partials) + int64_t{blockIdx.x} * plan.units * plan.part_threads +
                       thread;
  const auto give = [&](int i) {
    if (i < plan.units) scratch[i * kTeamThreads] = unit(i);  // there is no room for others
  };
  const auto take = [&](int i) {
    if (i >= plan.units || thread >= plan.part_threads) return;
    const float4 own = unit(i), other = scratch[i * kTeamThreads];
    part[i * plan.part_threads] = make_float4(own.x + other.x, own.y + other.y, own.z + other.z, own.w + other.w);
  };
  __syncthreads();
  if (team == 0) {
#pragma unroll
    for (int i = kHalf; i < kUnits; ++i) give(i);
  } else {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) give(i);
  }
  __syncthreads();
  if (team == 0) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) take(i);
  } else {
#pragma unroll
    for (int i = kHalf; i < kUnits; ++i) take(i);
  }
}

}  // namespace knnconv::hopper
