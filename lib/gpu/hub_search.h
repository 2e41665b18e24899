// How the kernels of hub_sums.h find hubs: nodes with more than kHubTaps taps, and their parts in units.
#pragma once

#include <cstdint>

#include "gpu/arithmetic.h"
#include "gpu/hub_sums.h"
#include "gpu/lanes.h"
#include "gpu/tap_layers.h"

namespace knnconv::gpu::hub {

inline constexpr int kThreads = 256;
inline constexpr int kNodesAsked = 8;  // at a time, by a thread

struct Hubs {
  TapGemm gemm;
  int64_t units;  // of each group
  float* partials;
  int32_t asking_blocks;  // of AskNodes, each with an answer; 0: there is no such kernel
};

// A hub's part of a unit.
struct Segment {
  int64_t node, hub_begin, hub_end;  // the whole list
  int64_t begin, end;                // within the unit
  bool exists;
};

// The last node whose list begins at or before `tap`, which lies in it. The lanes of a group look for it together, with
// one `tap`; how often they look depends on `nodes` alone, so that all groups of a warp stay in step.
KNNCONV_DEVICE int64_t NodeOf(const int32_t* offsets, int64_t nodes, int64_t tap) {
  const int lane = threadIdx.x % kGroupLanes;
  int64_t low = 0;
  for (int64_t span = nodes, step; span > 1; span = step) {
    step = CeilDiv(span, kGroupLanes);
    const int64_t at = low + lane * step;
    const bool begins = at < nodes && SourceOffset(offsets, at) <= tap;
    low += (__popc(GroupBallot(begins, kGroupLanes)) - 1) * step;
  }
  return low;
}

// Row `row` (0 or 1) of unit `unit`. By all lanes of a group, as NodeOf.
KNNCONV_DEVICE Segment FindSegment(const int32_t* offsets, int64_t nodes, int64_t unit, int row) {
  Segment segment{};
  const int64_t taps = SourceOffset(offsets, nodes), begin = unit * kHubTaps;
  const int64_t end = min(begin + kHubTaps, taps);
  segment.node = NodeOf(offsets, nodes, row == 0 ? begin : max(end - 1, begin));
  segment.hub_begin = SourceOffset(offsets, segment.node);
  segment.hub_end = SourceOffset(offsets, segment.node + 1);
  segment.begin = max(begin, segment.hub_begin);
  segment.end = min(end, segment.hub_end);
  const bool is_hub = begin < end && segment.hub_end - segment.hub_begin > kHubTaps;
  segment.exists = is_hub && (row == 0 || segment.hub_begin > begin);
  return segment;
}

// The row of the unit that holds the first part of a hub, or -1. By all lanes of a group, as NodeOf.
KNNCONV_DEVICE int FirstRow(const int32_t* offsets, int64_t nodes, int64_t unit) {
  const Segment whole = FindSegment(offsets, nodes, unit, 0), last = FindSegment(offsets, nodes, unit, 1);
  if (whole.exists && whole.hub_begin == unit * kHubTaps) return 0;
  return last.exists ? 1 : -1;
}

// Calls work(item) for the items of [0, count) that `test` picks, with all threads in step. Blocks take every so manyth
// item, so that the units of one hub spread over all of them. Most items of most tables are none and each test is a
// search: groups of a block test different items at a time, and the lanes of a group search together.
template <typename Test, typename Work>
KNNCONV_DEVICE void ForEachPicked(int64_t count, const Test& test, const Work& work) {
  constexpr int kGroups = kThreads / kGroupLanes;
  __shared__ bool picked[kGroups];
  const int64_t stride = gridDim.x;
  const int group = threadIdx.x / kGroupLanes;
  for (int64_t first = blockIdx.x; first < count; first += stride * kGroups) {
    const int64_t mine = first + group * stride;
    const bool found = test(min(mine, count - 1)) && mine < count;
    if (threadIdx.x % kGroupLanes == 0) picked[group] = found;
    __syncthreads();
    for (int i = 0; i < kGroups; ++i) {
      if (picked[i]) work(first + i * stride);
    }
    __syncthreads();
  }
}

KNNCONV_DEVICE const int32_t* OffsetsOf(const TapGemm& gemm, uint32_t group) {
  return gemm.table.offsets + gemm.table.offset_groups.Offset(gemm.groups, group);
}

// Whether one of the nodes `first`, `first` + `step`, ... of any group is a hub.
KNNCONV_DEVICE bool IsHubAmong(const TapGemm& gemm, int64_t first, int64_t step) {
  bool is_hub = false;
  for (uint32_t group = 0; group < gemm.groups.count(); ++group) {
    const int32_t* offsets = OffsetsOf(gemm, group);
    for (int64_t at = first; at < gemm.nodes; at += kNodesAsked * step) {
#pragma unroll
      for (int i = 0; i < kNodesAsked; ++i) {
        const int64_t n = at + i * step;
        if (n < gemm.nodes) is_hub |= SourceOffset(offsets, n + 1) - SourceOffset(offsets, n) > kHubTaps;
      }
    }
  }
  return is_hub;
}

}  // namespace knnconv::gpu::hub
