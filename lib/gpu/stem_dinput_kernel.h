// dinput over a table, for up to 4 channels of x, stretch by stretch (stem_dinput.h):
//
//     P[slot, m, c] = sum over o:  weight[slot, c, o] * g[b, m, o]             for the rows m of a stretch
//     dx[b, n, c] += sum over the stretch's taps (m, slot) of source n:  P[slot, m, c]
//
//         weights: 3 tiles of 16 (slot, channel) a warp, in registers     8 rows of g at a time, staged
//         products of a stretch of rows, fp32                             shared memory
//         sums of all sources, fp32                                       shared memory
//
// A lane of the second part has two neighbouring sources, whose lists stand one behind the other: where one is short,
// the other often is not. Long lists are the whole warp's. Products lie as pairs of channels and single ones: 8 bytes of
// one bank in 16, then 4 of one in 32.
//
// What bounds it: shared memory, where rows of taps lie at random and meet the same banks.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/stem_dinput_lists.h"
#include "gpu/stem_dinput_products.h"

namespace knnconv::gpu {

template <typename Shape>
KNNCONV_DEVICE void StoreSums(const TapGemm& gemm, const StemSample& sample, int64_t node,
                              const StemSourceSums<Shape>& sums) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (node + i >= gemm.nodes) continue;
#pragma unroll
    for (int c = 0; c < Shape::kChannels; ++c) {
      StoreElement(gemm.out, gemm.out_type, sample.out + (node + i) * Shape::kChannels + c, sums[i][c]);
    }
  }
}

// Adds a stretch's products to the sums of all sources; the last stretch's become the result. `visit` is the warp's
// first, and `lists` what it says. The next stretch's rows of g are on their way then.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample, int stretch,
                               const uint32_t* visit, StemLists lists, char* shared) {
  constexpr int kChannels = Shape::kChannels;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  // One block's products are added while the next one's first pairs and the lists of the one after it are loaded.
  const int step = Shape::kWarps * plan.stretches * kVisitWords;
  StemLists next = FindLists(visit += step, warp + Shape::kWarps < plan.blocks);
  StemCursor cursor = OpenCursor(sample.pairs, lists);
  __syncthreads();  // all products are there
  if (stretch + 1 < plan.stretches) CopyCotangent<Shape>(gemm, plan, sample, stretch + 1, shared + plan.rows_at);
  CommitCopies();
#pragma unroll 1
  for (int block = warp; block < plan.blocks; block += Shape::kWarps) {
    const StemLists current = lists;
    const StemCursor first = cursor;
    lists = next;
    cursor = OpenCursor(sample.pairs, lists);
    next = FindLists(visit += step, block + 2 * Shape::kWarps < plan.blocks);

    const bool is_long = AreLong(current), is_last = stretch + 1 == plan.stretches;
    if (first.lanes == 0 && !is_long && stretch > 0 && !is_last) continue;
    const int node = block * kOrderedSources + lane * 2;
    float2* const kept = reinterpret_cast<float2*>(shared + plan.sums_at) + node / 2 * kChannels;
    StemSourceSums<Shape> sums = {};
#pragma unroll
    for (int c = 0; c < kChannels && stretch > 0; ++c) {
      const float2 two = kept[c];
      sums[c * 2 / kChannels][c * 2 % kChannels] = two.x;
      sums[(c * 2 + 1) / kChannels][(c * 2 + 1) % kChannels] = two.y;
    }
    AddShortLists<Shape>(plan, first, shared, sums);
    if (is_long) AddLongLists<Shape>(plan, sample.pairs, current, shared, sums);
    if (is_last) {
      StoreSums<Shape>(gemm, sample, node, sums);
      continue;
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      kept[c] = make_float2(sums[c * 2 / kChannels][c * 2 % kChannels],
                            sums[(c * 2 + 1) / kChannels][(c * 2 + 1) % kChannels]);
    }
  }
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, 1)
    StemDinputKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemDinputPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    const StemSample sample = OpenStemSample(gemm, plan);
    const int warp = threadIdx.x / kWarpSize;
    CopyCotangent<Shape>(gemm, plan, sample, 0, shared + plan.rows_at);
    CommitCopies();
    if (threadIdx.x == 0) {
#pragma unroll
      for (int pair = 0; pair < Shape::kTiles.pairs; ++pair) {
        reinterpret_cast<float2*>(shared)[plan.nowhere + pair * plan.pitch] = make_float2(0, 0);
      }
      if (Shape::kTiles.singles != 0) reinterpret_cast<float*>(shared + plan.singles_at)[plan.nowhere] = 0.0f;
    }
    StemWeights<Shape> weights;
#pragma unroll 1
    for (int stretch = 0; stretch < plan.stretches; ++stretch) {
      const uint32_t* const visit = sample.visits + (int64_t{warp} * plan.stretches + stretch) * kVisitWords;
      const StemLists lists = FindLists(visit, warp < plan.blocks);
      WaitForCopies<0>();
      __syncthreads();  // rows of g are there, and every warp is done with the last stretch's products
#pragma unroll 1
      for (int pass = 0; pass < plan.passes; ++pass) {
        const int slot = (pass * plan.slot_warps + warp % plan.slot_warps) * Shape::kTiles.slots;
        if (slot >= gemm.slots) continue;
        if (plan.passes > 1 || stretch == 0) LoadStemWeights<Shape>(gemm, sample, slot, weights);
        MultiplyStretch<Shape>(plan, weights, slot, gemm.slots - slot, shared + plan.rows_at, shared);
      }
      AddStretch<Shape>(gemm, plan, sample, stretch, visit, lists, shared);
    }
  }
}

}  // namespace knnconv::gpu
