// dinput over a table, for 3 channels of x, stretch by stretch (stem_dinput.h):
//
//     P[slot, m, c] = sum over o:  weight[slot, c, o] * g[b, m, o]             for the rows m of a stretch
//     dx[b, n, c] += sum over the stretch's taps (m, slot) of source n:  P[slot, m, c]
//
//         weights: 2 tiles of 64 (slot, channel) a warpgroup, in registers     64 rows of g at a time, staged
//         products of a stretch of rows, fp32                                  shared memory
//         sums of 4 pairs of sources a lane, fp32                              registers
//
// As gpu/stem_dinput_kernel.h, whose lists these are. Sums that lie in registers are not read and written again for
// each stretch, and leave their room to longer stretches, of which fewer quads are half empty.
//
// What bounds it: shared memory, where rows of taps lie at random and meet the same banks; while a stretch is
// multiplied, tensor cores and then the stores of products.
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu/dependent_launch.h"
#include "gpu/stem_dinput_lists.h"
#include "hopper/stem_dinput_products.h"

namespace knnconv::hopper {

template <typename Shape>
using StemSums = float[Shape::kPairs][2][Shape::kChannels];

// A lane's lists of a stretch, of one block of sources after the other: those of the block that is next are loaded, and
// those behind it are under way.
template <typename Shape>
struct StemQueue {
  const StemDinputPlan& plan;
  int at;  // of the warp's first block in the stretch
  gpu::StemLists lists, next;
  gpu::StemCursor cursor;

  // Of the warp's block number i.
  KNNCONV_DEVICE gpu::StemLists Find(int i) const {
    const bool exists = i < Shape::kPairs && static_cast<int>(threadIdx.x / 32) + i * Shape::kWarps < plan.blocks;
    const int of = at + i * Shape::kThreads;
    return exists ? gpu::StemLists{plan.firsts[of], plan.rests[of]} : gpu::StemLists{};
  }
};

// Adds a stretch's products to the sums of the warp's sources.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const StemDinputPlan& plan, StemQueue<Shape>& queue, const char* shared,
                               StemSums<Shape>& sums) {
  const gpu::StretchProducts products(plan, shared);
#pragma unroll
  for (int i = 0; i < Shape::kPairs; ++i) {
    const gpu::StemLists lists = queue.lists;
    const gpu::StemCursor cursor = queue.cursor;
    gpu::AddFirsts<Shape>(products, lists, sums[i]);
    if (i + 1 < Shape::kPairs) {
      queue.lists = queue.next;
      queue.cursor = gpu::OpenCursor(plan, queue.lists);
      queue.next = queue.Find(i + 2);
    }
    gpu::AddShortLists<Shape>(products, cursor, sums[i]);
    if (gpu::AnyLane(gpu::AreLong(lists))) gpu::AddLongLists<Shape>(products, plan.quads, lists, sums[i]);
  }
}

// Puts the sums of all sources to shared memory, as dx lies.
template <typename Shape>
KNNCONV_DEVICE void GatherSums(const StemDinputPlan& plan, const StemSums<Shape>& sums, char* shared) {
  static_assert(Shape::kChannels == 3);
#pragma unroll
  for (int i = 0; i < Shape::kPairs; ++i) {
    if (static_cast<int>(threadIdx.x / 32) + i * Shape::kWarps >= plan.blocks) continue;
    float2* const to = reinterpret_cast<float2*>(shared) + (static_cast<int>(threadIdx.x) + i * Shape::kThreads) * 3;
    to[0] = make_float2(sums[i][0][0], sums[i][0][1]);
    to[1] = make_float2(sums[i][0][2], sums[i][1][0]);
    to[2] = make_float2(sums[i][1][1], sums[i][1][2]);
  }
}

// Stores `count` sums, two of 16 bits at a time: a sample may begin at an odd element.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreSums(Out* out, const float* sums, int count) {
  if constexpr (sizeof(Out) == 4) {
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += Shape::kThreads) out[i] = sums[i];
  } else {
    const int head = static_cast<int>(reinterpret_cast<uintptr_t>(out) / sizeof(Out) % 2), twos = (count - head) / 2;
    if (threadIdx.x == 0) {
      if (head != 0) out[0] = gpu::FromFloat<Out>(sums[0]);
      if (head + twos * 2 < count) out[count - 1] = gpu::FromFloat<Out>(sums[count - 1]);
    }
#pragma unroll 4
    for (int i = threadIdx.x; i < twos; i += Shape::kThreads) {
      const int at = head + i * 2;
      const Out two[2] = {gpu::FromFloat<Out>(sums[at]), gpu::FromFloat<Out>(sums[at + 1])};
      uint32_t bits;
      std::memcpy(&bits, two, sizeof(bits));
      *reinterpret_cast<uint32_t*>(out + at) = bits;
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void StoreSample(const gpu::TapGemm& gemm, const char* shared) {
  const float* const sums = reinterpret_cast<const float*>(shared);
  const int count = static_cast<int>(gemm.nodes) * Shape::kChannels;
  const int64_t out = static_cast<int64_t>(blockIdx.x) * count;
  if (gemm.out_type == gpu::Element::kF32) {
    StoreSums<Shape>(static_cast<float*>(gemm.out) + out, sums, count);
  } else if (gemm.out_type == gpu::Element::kF16) {
    StoreSums<Shape>(static_cast<gpu::Half*>(gemm.out) + out, sums, count);
  } else {
    StoreSums<Shape>(static_cast<gpu::BFloat*>(gemm.out) + out, sums, count);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    StemDinputKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ StemDinputPlan plan) {
  extern __shared__ __align__(128) char shared[];
  const gpu::StemSample sample = gpu::OpenStemSample(gemm, plan);
  gpu::CopyStemWeights<Shape>(gemm, sample, shared);
  CopyRows<Shape>(gemm, plan, sample, 0, shared + plan.rows_at);
  gpu::CommitCopies();
  const StemTile<true> pairs(plan);
  const StemTile<false> singles(plan);
  TileWeights<Shape> pair_weights, single_weights;
  gpu::WaitForCopies<0>();
  __syncthreads();
  LoadTile<Shape>(gemm, pairs, shared, pair_weights);
  LoadTile<Shape>(gemm, singles, shared, single_weights);
  __syncthreads();  // products take their place
  const int group = blockIdx.x / static_cast<uint32_t>(gemm.batch), lists = plan.blocks * (gpu::kOrderedSources / 2);
  StemQueue<Shape> queue{plan, group * plan.stretches * lists + static_cast<int>(threadIdx.x)};
  if (threadIdx.x == 0) gpu::WriteNowhere<Shape>(plan, shared);
  StemSums<Shape> sums = {};
#pragma unroll 1
  for (int stretch = 0; stretch < plan.stretches; ++stretch) {
    if (stretch == 0) WaitForPrerequisites();  // the order of taps is there
    queue.lists = queue.Find(0);
    gpu::WaitForCopies<0>();
    FenceAsyncProxy();
    __syncthreads();  // rows of g are there, and every warp is done with the last stretch's products
    const int units = gpu::StretchUnits(gemm, plan, stretch);
    MultiplyTile<Shape>(gemm, plan, pairs, pair_weights, units, shared);
    MultiplyTile<Shape>(gemm, plan, singles, single_weights, units, shared);
    queue.next = queue.Find(1);
    queue.cursor = gpu::OpenCursor(plan, queue.lists);
    __syncthreads();  // all products are there
    if (stretch + 1 < plan.stretches) CopyRows<Shape>(gemm, plan, sample, stretch + 1, shared + plan.rows_at);
    gpu::CommitCopies();
    AddStretch<Shape>(plan, queue, shared, sums);
    queue.at += lists;
  }
  __syncthreads();  // every warp is done with the last products
  GatherSums<Shape>(plan, sums, shared);
  __syncthreads();
  StoreSample<Shape>(gemm, shared);
}

}  // namespace knnconv::hopper
