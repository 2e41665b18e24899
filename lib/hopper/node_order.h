// Nodes by the length of their lists, longest first, so that no team is left with a long one at the end.
//
// Each block sorts for itself, stable, so that all blocks find the same order: few nodes by counting those before each,
// many by a counting sort by length in shared memory.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/tap_layers.h"
#include "hopper/tap_plan.h"

namespace knnconv::hopper {

inline constexpr int kLengthBuckets = 64;

// Room that SortNodes needs besides `order`.
template <int kThreads, int kMaxNodes>
struct SortScratch {
  uint16_t bucket[kMaxNodes];
  uint32_t place[kThreads / 32][kLengthBuckets];  // counts of each warp's nodes, then where the next one goes
  uint32_t total[kLengthBuckets];
};

// Fills order[place] with the nodes of a kSources `gemm`, of which each thread has one. By all threads of the block.
template <int kThreads>
KNNCONV_DEVICE void SortFewNodes(const gpu::TapGemm& gemm, uint16_t* order, uint32_t* keys) {
  const int nodes = static_cast<int>(gemm.nodes), own = threadIdx.x;
  uint32_t own_key = 0;  // below those of nodes, of which no two are alike
  if (own < nodes) {
    const int32_t* offsets = gemm.table.offsets;
    const int64_t count = gpu::SourceOffset(offsets, own + 1) - gpu::SourceOffset(offsets, own);
    const uint32_t length = count > gpu::kHubTaps ? 0 : static_cast<uint32_t>(count);  // hubs are not computed here
    own_key = length << 16 | (0xffffu - own);
  }
  keys[own] = own_key;
  __syncthreads();
  if (own < nodes) {
    int place = 0;
#pragma unroll 4
    for (int n = 0; n < nodes; n += 4) {
      const uint4 key = *reinterpret_cast<const uint4*>(keys + n);
      place += (key.x > own_key ? 1 : 0) + (key.y > own_key ? 1 : 0) + (key.z > own_key ? 1 : 0) +
               (key.w > own_key ? 1 : 0);
    }
    order[place] = static_cast<uint16_t>(own);
  }
  __syncthreads();
}

// Fills order[place] with the nodes of a kSources `gemm`, at most kMaxNodes. By all threads of the block.
template <int kThreads, int kMaxNodes>
KNNCONV_DEVICE void SortNodes(const gpu::TapGemm& gemm, uint16_t* order, SortScratch<kThreads, kMaxNodes>& scratch) {
  static_assert(sizeof(scratch) >= kThreads * sizeof(uint32_t) && kThreads % 4 == 0);
  if (gemm.nodes <= kThreads) return SortFewNodes<kThreads>(gemm, order, reinterpret_cast<uint32_t*>(&scratch));
  constexpr int kWarps = kThreads / 32;
  const int nodes = static_cast<int>(gemm.nodes), thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int share = (nodes + kThreads - 1) / kThreads * 32, begin = warp * share, end = min(begin + share, nodes);
  const int32_t* offsets = gemm.table.offsets;
  // Buckets are as wide as lists of four times the mean length ask for; longer ones share the first.
  const int64_t mean = gpu::SourceOffset(offsets, nodes) / nodes;
  int shift = 0;
  while ((4 * mean >> shift) >= kLengthBuckets) ++shift;

  for (int i = thread; i < kWarps * kLengthBuckets; i += kThreads) {
    scratch.place[i / kLengthBuckets][i % kLengthBuckets] = 0;
  }
#pragma unroll 4
  for (int n = thread; n < nodes; n += kThreads) {
    const int64_t count = gpu::SourceOffset(offsets, n + 1) - gpu::SourceOffset(offsets, n);
    const int length = count > gpu::kHubTaps ? 0 : static_cast<int>(count) >> shift;  // hubs are not computed here
    scratch.bucket[n] = static_cast<uint16_t>(kLengthBuckets - 1 - min(length, kLengthBuckets - 1));
  }
  __syncthreads();

  // Lanes with one bucket, of those with a node; calls visit(bucket, which of them the lane is, how many they are).
  auto for_each_group = [&](const auto& visit) {
    for (int first = begin; first < end; first += 32) {
      const int n = first + lane, bucket = n < end ? scratch.bucket[n] : kLengthBuckets;
      const uint32_t same = __match_any_sync(kAllLanes, bucket);
      const int rank = __popc(same & ((1u << lane) - 1));
      if (n < end) visit(n, bucket, rank);
      __syncwarp();
      if (n < end && rank == 0) scratch.place[warp][bucket] += __popc(same);
      __syncwarp();
    }
  };
  for_each_group([](int, int, int) {});
  __syncthreads();
  if (thread < kLengthBuckets) {
    uint32_t sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const uint32_t count = scratch.place[w][thread];
      scratch.place[w][thread] = sum;
      sum += count;
    }
    scratch.total[thread] = sum;
  }
  __syncthreads();
  if (thread < kLengthBuckets) {
    uint32_t before = 0;
    for (int b = 0; b < thread; ++b) before += scratch.total[b];
    for (int w = 0; w < kWarps; ++w) scratch.place[w][thread] += before;
  }
  __syncthreads();
  for_each_group([&](int n, int bucket, int rank) {
    order[scratch.place[warp][bucket] + rank] = static_cast<uint16_t>(n);
  });
  __syncthreads();
}

}  // namespace knnconv::hopper
