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

// Adds a stretch's products to the sums of all sources; the last stretch's become the result. `ends` are the lane's, of
// the warp's first block, and `lists` what they say. The next stretch's rows of g are on their way then.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample, int stretch,
                               const uint32_t* ends, StemLists lists, char* shared) {
  constexpr int kChannels = Shape::kChannels;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  // One block's products are added while the next one's first quads and the lists of the one after it are loaded.
  const int step = Shape::kWarps * plan.block_ends;
  StemLists next = FindLists(ends += step, warp + Shape::kWarps < plan.blocks);
  StemCursor cursor = OpenCursor(sample.quads, lists);
  __syncthreads();  // all products are there
  if (stretch + 1 < plan.stretches) CopyCotangent<Shape>(gemm, plan, sample, stretch + 1, shared + plan.rows_at);
  CommitCopies();
#pragma unroll 1
  for (int block = warp; block < plan.blocks; block += Shape::kWarps) {
    const StemLists current = lists;
    const StemCursor first = cursor;
    lists = next;
    cursor = OpenCursor(sample.quads, lists);
    next = FindLists(ends += step, block + 2 * Shape::kWarps < plan.blocks);

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
    if (AnyLane(AreLong(current))) AddLongLists<Shape>(plan, sample.quads, current, shared, sums);
    if (stretch + 1 == plan.stretches) {
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

// The products of a place that no tap has.
template <typename Shape>
KNNCONV_DEVICE void WriteNowhere(const StemDinputPlan& plan, char* shared) {
  constexpr StemTiles kTiles = Shape::kTiles;
#pragma unroll
  for (int pair = 0; pair < kTiles.pairs; ++pair) {
    float2* const at = reinterpret_cast<float2*>(shared + plan.nowhere * (8 / kTiles.scale));
    at[pair * plan.pitch] = make_float2(0, 0);
  }
  char* const single = shared + plan.singles_at + plan.nowhere * (4 / kTiles.scale);
  if (kTiles.singles != 0) *reinterpret_cast<float*>(single) = 0.0f;
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, 1)
    StemDinputKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemDinputPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    const StemSample sample = OpenStemSample(gemm, plan);
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    CopyStemWeights<Shape>(gemm, sample, shared);
    CopyCotangent<Shape>(gemm, plan, sample, 0, shared + plan.rows_at);
    CommitCopies();
    const int slot = warp % plan.slot_warps * Shape::kTiles.slots;
    StemWeights<Shape> weights;
    WaitForCopies<0>();
    __syncthreads();
    LoadStemWeights<Shape>(gemm, slot, shared, weights);
    __syncthreads();  // products take their place
    if (threadIdx.x == 0) WriteNowhere<Shape>(plan, shared);
#pragma unroll 1
    for (int stretch = 0; stretch < plan.stretches; ++stretch) {
      const uint32_t* const ends =
          sample.ends + warp * plan.block_ends + kFirstEnd + stretch * kOrderedSources + lane * 2;
      const StemLists lists = FindLists(ends, warp < plan.blocks);
      WaitForCopies<0>();
      __syncthreads();  // rows of g are there, and every warp is done with the last stretch's products
      MultiplyStretch<Shape>(plan, weights, slot, gemm.slots - slot, StretchUnits(gemm, plan, stretch),
                             shared + plan.rows_at, shared);
      AddStretch<Shape>(gemm, plan, sample, stretch, ends, lists, shared);
    }
  }
}

}  // namespace knnconv::gpu
