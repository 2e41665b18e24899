// dinput over a table, for 3 channels of x, stretch by stretch (stem_dinput.h):
//
//     P[slot, m, c] = sum over o:  weight[slot, c, o] * g[b, m, o]             for the rows m of a stretch
//     dx[b, n, c] += sum over the stretch's taps (m, slot) of source n:  P[slot, m, c]
#pragma once

#include <cstdint>

#include "gpu/dependent_launch.h"
#include "gpu/stem_dinput_lists.h"
#include "hopper/stem_dinput_products.h"

namespace knnconv::hopper {

#ifdef STEM_PHASES
__device__ long long stem_phases[16];
void ReadPhases(long long* to, bool clear) {
  cudaMemcpyFromSymbol(to, stem_phases, sizeof(stem_phases));
  const long long zero[16] = {};
  if (clear) cudaMemcpyToSymbol(stem_phases, zero, sizeof(zero));
}
#define STEM_CLOCK(i) if (threadIdx.x == 0 && blockIdx.x == 5) { const long long now = clock64(); stem_phases[i] += now - last; last = now; }
#else
#define STEM_CLOCK(i)
#endif

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

  KNNCONV_DEVICE gpu::StemLists Find(int i) const {
    const bool exists = i < Shape::kPairs && static_cast<int>(threadIdx.x / 32) + i * Shape::kWarps < plan.blocks;
    const int of = at + i * Shape::kWarps * (gpu::kOrderedSources / 2);
    return exists ? gpu::StemLists{plan.firsts[of], plan.rests[of]} : gpu::StemLists{};
  }
};

// Adds the products of the lane's first quads, and of the one behind them: most warps have one there.
template <typename Shape>
KNNCONV_DEVICE void AddFront(const StemDinputPlan& plan, const gpu::StretchProducts& products,
                             const gpu::StemLists& lists, gpu::StemCursor& cursor,
                             gpu::StemSourceSums<Shape>& sums) {
  const bool any = cursor.quads > 0, is_first = cursor.first_quads > 0;
  const uint32_t nowhere = static_cast<uint32_t>(plan.nowhere) * 0x10001u;
  const uint2 quad = make_uint2(any ? cursor.quad.x : nowhere, any ? cursor.quad.y : nowhere);
  float sum[3][Shape::kChannels];
  gpu::SumQuad<Shape>(products, make_uint2(lists.first.x, lists.first.y), sum[0]);
  gpu::SumQuad<Shape>(products, make_uint2(lists.first.z, lists.first.w), sum[1]);
  gpu::SumQuad<Shape>(products, quad, sum[2]);
  ++cursor.at;
  --cursor.quads;
  --cursor.first_quads;
  cursor.Fetch();
#pragma unroll
  for (int c = 0; c < Shape::kChannels; ++c) {
    sums[0][c] += sum[0][c];
    sums[1][c] += sum[1][c];
    if (is_first) sums[0][c] += sum[2][c];
    if (!is_first) sums[1][c] += sum[2][c];
  }
}

// Adds a stretch's products to the sums of the warp's sources.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const StemDinputPlan& plan, StemQueue<Shape>& queue, const char* shared,
                               StemSums<Shape>& sums) {
  const gpu::StretchProducts products(plan, shared);
#pragma unroll
  for (int i = 0; i < Shape::kPairs; ++i) {
    const gpu::StemLists lists = queue.lists;
    const gpu::StemCursor cursor = queue.cursor;
#ifdef STEM_JOIN
    gpu::StemCursor left = cursor;
    AddFront<Shape>(plan, products, lists, left, sums[i]);
#else
    const gpu::StemCursor& left = cursor;
    gpu::AddFirsts<Shape>(products, lists, sums[i]);
#endif
    if (i + 1 < Shape::kPairs) {
      queue.lists = queue.next;
      queue.cursor = gpu::OpenCursor(plan, queue.lists);
      queue.next = queue.Find(i + 2);
    }
    gpu::AddShortLists<Shape>(products, left, sums[i]);
    if (gpu::AnyLane(gpu::AreLong(lists))) gpu::AddLongLists<Shape>(products, plan.quads, lists, sums[i]);
  }
}

// Stores the sums of all sources, two of 16 bits at a time.
template <typename Out>
KNNCONV_DEVICE void StoreSums(Out* out, const float* sums, int count) {
  if constexpr (sizeof(Out) == 4) {
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += kStemThreads) out[i] = sums[i];
  } else {
    const int head = static_cast<int>(reinterpret_cast<uintptr_t>(out) / 2 % 2), pairs = (count - head) / 2;
    if (head != 0 && threadIdx.x == 0) out[0] = gpu::FromFloat<Out>(sums[0]);
    if (head + pairs * 2 < count && threadIdx.x == 0) out[count - 1] = gpu::FromFloat<Out>(sums[count - 1]);
#pragma unroll 4
    for (int i = threadIdx.x; i < pairs; i += kStemThreads) {
      const Out two[2] = {gpu::FromFloat<Out>(sums[head + i * 2]), gpu::FromFloat<Out>(sums[head + i * 2 + 1])};
      uint32_t bits;
      memcpy(&bits, two, sizeof(bits));
      *reinterpret_cast<uint32_t*>(out + head + i * 2) = bits;
    }
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    StemDinputKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ StemDinputPlan plan) {
  extern __shared__ __align__(128) char shared[];
#ifdef STEM_PHASES
  long long last = clock64();
#endif
  const gpu::StemSample sample = gpu::OpenStemSample(gemm, plan);
  const int warp = threadIdx.x / 32;
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
  const int group = blockIdx.x / static_cast<uint32_t>(gemm.batch), lists_of = plan.blocks * (gpu::kOrderedSources / 2);
  StemQueue<Shape> queue{plan, group * plan.stretches * lists_of + static_cast<int>(threadIdx.x)};
  if (threadIdx.x == 0) gpu::WriteNowhere<Shape>(plan, shared);
  StemSums<Shape> sums = {};
  STEM_CLOCK(0)
#pragma unroll 1
  for (int stretch = 0; stretch < plan.stretches; ++stretch) {
    if (stretch == 0) WaitForPrerequisites();  // the order of taps is there
    STEM_CLOCK(1)
    queue.lists = queue.Find(0);
    gpu::WaitForCopies<0>();
    FenceAsyncProxy();
    __syncthreads();  // rows of g are there, and every warp is done with the last stretch's products
    STEM_CLOCK(2)
    const int units = gpu::StretchUnits(gemm, plan, stretch);
    MultiplyTile<Shape>(gemm, plan, pairs, pair_weights, units, shared);
    MultiplyTile<Shape>(gemm, plan, singles, single_weights, units, shared);
    STEM_CLOCK(3)
    queue.next = queue.Find(1);
    queue.cursor = gpu::OpenCursor(plan, queue.lists);
    __syncthreads();  // all products are there
    STEM_CLOCK(4)
    if (stretch + 1 < plan.stretches) CopyRows<Shape>(gemm, plan, sample, stretch + 1, shared + plan.rows_at);
    gpu::CommitCopies();
    AddStretch<Shape>(plan, queue, shared, sums);
    queue.at += lists_of;
    STEM_CLOCK(5)
  }
  __syncthreads();  // every warp is done with the last products
  float2* const kept = reinterpret_cast<float2*>(shared);
#pragma unroll
  for (int i = 0; i < Shape::kPairs; ++i) {
    const int block = warp + i * Shape::kWarps;
    float2* const to = kept + (block * (gpu::kOrderedSources / 2) + threadIdx.x % 32) * 3;
    if (block >= plan.blocks) continue;
    to[0] = make_float2(sums[i][0][0], sums[i][0][1]);
    to[1] = make_float2(sums[i][0][2], sums[i][1][0]);
    to[2] = make_float2(sums[i][1][1], sums[i][1][2]);
  }
  __syncthreads();  // all sums are there
  const float* const all = reinterpret_cast<const float*>(shared);
  const int count = static_cast<int>(gemm.nodes) * Shape::kChannels;
  const int64_t out = static_cast<int64_t>(blockIdx.x) * count;
  if (gemm.out_type == gpu::Element::kF32) {
    StoreSums(static_cast<float*>(gemm.out) + out, all, count);
  } else if (gemm.out_type == gpu::Element::kF16) {
    StoreSums(static_cast<gpu::Half*>(gemm.out) + out, all, count);
  } else {
    StoreSums(static_cast<gpu::BFloat*>(gemm.out) + out, all, count);
  }
  STEM_CLOCK(6)
}

}  // namespace knnconv::hopper
