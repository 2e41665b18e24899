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

#include "gpu/dependent_launch.h"
#include "gpu/lanes.h"
#include "gpu/stem_dinput_lists.h"
#include "gpu/stem_dinput_products.h"

namespace knnconv::gpu {

// Adds a stretch's products to the sums of all sources. `lists` are of the warp's first block. The next stretch's rows
// of g are on their way then.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample, int stretch,
                               const ListWalk& walk, StemLists lists, char* shared) {
  constexpr int kChannels = Shape::kChannels;
  const StretchProducts products(plan, shared);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  // One block's products are added while the next one's first quads and the lists of the one after it are loaded.
  const auto find = [&](int block) { return block < plan.blocks ? walk.Find(block - warp) : StemLists{}; };
  StemLists next = find(warp + Shape::kWarps);
  StemCursor cursor = OpenCursor(plan, lists);
  __syncthreads();  // all products are there
  if (stretch + 1 < plan.stretches) CopyCotangent<Shape>(gemm, plan, sample, stretch + 1, shared + plan.rows_at);
  CommitCopies();
#pragma unroll 1
  for (int block = warp; block < plan.blocks; block += Shape::kWarps) {
    const StemLists current = lists;
    const StemCursor first = cursor;
    lists = next;
    cursor = OpenCursor(plan, lists);
    next = find(block + 2 * Shape::kWarps);

    float2* const kept = reinterpret_cast<float2*>(shared + plan.sums_at) +
                         (block * (kOrderedSources / 2) + lane) * kChannels;
    StemSourceSums<Shape> sums = {};
#pragma unroll
    for (int c = 0; c < kChannels && stretch > 0; ++c) {
      const float2 two = kept[c];
      sums[c * 2 / kChannels][c * 2 % kChannels] = two.x;
      sums[(c * 2 + 1) / kChannels][(c * 2 + 1) % kChannels] = two.y;
    }
    AddLists<Shape>(plan, products, current, first, sums);
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
    CopyStemWeights<Shape>(gemm, sample, shared);
    CopyCotangent<Shape>(gemm, plan, sample, 0, shared + plan.rows_at);
    CommitCopies();
    const int slot = warp % plan.slot_warps * Shape::kTiles.slots;
    StemWeights<Shape> weights;
    WaitForCopies<0>();
    __syncthreads();
    LoadStemWeights<Shape>(gemm, slot, shared, weights);
    __syncthreads();  // products take their place
    ListWalk walk(sample, warp);
    if (threadIdx.x == 0) WriteNowhere<Shape>(plan, shared);
#pragma unroll 1
    for (int stretch = 0; stretch < plan.stretches; ++stretch) {
      if (stretch == 0) WaitForPrerequisites();  // the order of taps is there
      const StemLists lists = warp < plan.blocks ? walk.Find(0) : StemLists{};
      WaitForCopies<0>();
      __syncthreads();  // rows of g are there, and every warp is done with the last stretch's products
      MultiplyStretch<Shape>(plan, weights, slot, gemm.slots - slot, StretchUnits(gemm, plan, stretch),
                             shared + plan.rows_at, shared);
      AddStretch<Shape>(gemm, plan, sample, stretch, walk, lists, shared);
      walk.GoOn(plan);
    }
    __syncthreads();  // all sums are there
    StoreSums<Shape>(gemm, sample, reinterpret_cast<const float*>(shared + plan.sums_at));
  }
}

}  // namespace knnconv::gpu
