// The source order of a stem's taps, by stretch: of every kOrderedSources sources, the taps of the first stretch of
// rows of g come first, source by source, then those of the second, as the blocks of stem_dinput_kernel.h go through
// them.
//
//     place of a tap's products within the stretch = slot * slot_step + row % stretch * row_step
//
// Places stand in quads of 16 bits; a list that does not fill its last one ends with places whose products are 0.
//
// A block has kOrderedSources sources. Counts of (stretch, source) are summed up before it; then a warp goes through a
// source's list, 32 taps at a time, and finds how many of them are of the same stretch and stand before each. Bound by
// latency.
#include "gpu/lanes.h"
#include "gpu/stem_dinput.h"
#include "gpu/tap_layers.h"

namespace knnconv::gpu {
namespace {

constexpr int kThreads = 1024;

// The last source whose list begins at or before `tap` of the block.
KNNCONV_DEVICE int SourceOf(const int32_t* begins, int tap) {
  int source = 0;
  for (int step = kOrderedSources / 2; step > 0; step /= 2) {
    if (begins[source + step] <= tap) source += step;
  }
  return source;
}

// The lanes of the group with the same number below `limit`.
KNNCONV_DEVICE uint32_t EqualLanes(int number, int limit) {
  uint32_t lanes = ~0u;
  for (int bit = 1; bit < limit; bit *= 2) {
    const bool set = (number & bit) != 0;
    const uint32_t those = GroupBallot(set, kGroupLanes);
    lanes &= set ? those : ~those;
  }
  return lanes;
}

// counts[cell] becomes the sum of all cells up to it. `totals` has room for cells / kGroupLanes numbers.
KNNCONV_DEVICE void AddUp(int32_t* counts, int32_t* totals, int cells) {
  static_assert(kOrderedSources % kGroupLanes == 0, "no group of lanes is cut");
  const int lane = threadIdx.x % kGroupLanes;
  for (int first = 0; first < cells; first += kThreads) {
    const int cell = first + static_cast<int>(threadIdx.x);
    int count = cell < cells ? counts[cell] : 0;
    for (int step = 1; step < kGroupLanes; step *= 2) {
      const int before = GroupShuffle(count, max(lane - step, 0), kGroupLanes);
      if (lane >= step) count += before;
    }
    if (cell >= cells) continue;
    counts[cell] = count;
    if (lane == kGroupLanes - 1) totals[cell / kGroupLanes] = count;
  }
  __syncthreads();
  for (int cell = threadIdx.x; cell < cells; cell += kThreads) {
    int before = 0;
    for (int group = 0; group < cell / kGroupLanes; ++group) before += totals[group];
    counts[cell] += before;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    StemOrder(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemDinputPlan plan) {
  KNNCONV_DYNAMIC_SHARED(shared);
  const int cells = plan.stretches * kOrderedSources, t = threadIdx.x;
  int32_t* const ends = reinterpret_cast<int32_t*>(shared);  // [stretches, kOrderedSources], in quads
  int32_t* const nexts = ends + cells;                       // the cell's next place in the block
  int32_t* const totals = nexts + cells;
  int32_t* const begins = totals + cells / kGroupLanes;  // [kOrderedSources + 1]

  const uint32_t group = blockIdx.x / plan.blocks;
  const int32_t* const offsets = gemm.table.offsets + gemm.table.offset_groups.Offset(gemm.groups, group);
  const int64_t block = blockIdx.x % plan.blocks, first_node = block * kOrderedSources;
  const int64_t block_begin = SourceOffset(offsets, first_node);
  if (t <= kOrderedSources) {
    begins[t] = static_cast<int32_t>(SourceOffset(offsets, min(first_node + t, gemm.nodes)) - block_begin);
  }
  for (int cell = t; cell < cells; cell += kThreads) ends[cell] = 0;
  __syncthreads();

  const int taps = begins[kOrderedSources];
  const int32_t* const slots = gemm.table.slots + gemm.table.slot_groups.Offset(gemm.groups, group) + block_begin;
  const int32_t* const rows = gemm.table.sources + gemm.table.source_groups.Offset(gemm.groups, group) + block_begin;
#pragma unroll 2
  for (int tap = t; tap < taps; tap += kThreads) {
    const int stretch = plan.by_stretch.Divide(ReadOnly(rows + tap)).quotient;
    atomicAdd(&ends[stretch * kOrderedSources + SourceOf(begins, tap)], 1);
  }
  __syncthreads();
  for (int cell = t; cell < cells; cell += kThreads) ends[cell] = (ends[cell] + 3) / 4;
  __syncthreads();
  AddUp(ends, totals, cells);

  const int64_t before = plan.BlockQuads(block_begin, block);
  uint32_t* const to = plan.ends + int64_t{blockIdx.x} * plan.block_ends;
  uint16_t* const places = reinterpret_cast<uint16_t*>(plan.quads + group * plan.group_quads + before);
  if (t < kFirstEnd) to[t] = static_cast<uint32_t>(before);
  for (int cell = t; cell < cells; cell += kThreads) {
    nexts[cell] = cell == 0 ? 0 : ends[cell - 1] * 4;
    to[kFirstEnd + cell] = static_cast<uint32_t>(before + ends[cell]);
  }
  __syncthreads();
  const int lane = t % kGroupLanes;
#pragma unroll 1
  for (int source = t / kGroupLanes; source < kOrderedSources; source += kThreads / kGroupLanes) {
#pragma unroll 1
    for (int first = begins[source]; first < begins[source + 1]; first += kGroupLanes) {
      const int tap = first + lane;
      const bool exists = tap < begins[source + 1];
      const Divisor::Result row = plan.by_stretch.Divide(exists ? ReadOnly(rows + tap) : 0);
      const int slot = exists ? ReadOnly(slots + tap) : 0;
      const uint32_t same = EqualLanes(row.quotient, plan.stretches) & GroupBallot(exists, kGroupLanes);
      int32_t* const next = nexts + row.quotient * kOrderedSources + source;
      const int place = *next + __popc(same & ((1u << lane) - 1));
      SyncWarp();
      if (exists && same >> lane == 1) *next = place + 1;  // the last of its stretch
      SyncWarp();
      if (exists) places[place] = static_cast<uint16_t>(slot * plan.slot_step + row.remainder * plan.row_step);
    }
  }
  __syncthreads();
  for (int cell = t; cell < cells; cell += kThreads) {
    for (int place = nexts[cell]; place < ends[cell] * 4; ++place) places[place] = static_cast<uint16_t>(plan.nowhere);
  }
}

constexpr int OrderBytes(int stretches) {
  return stretches * kOrderedSources * 8 + stretches * kOrderedSources / kGroupLanes * 4 + (kOrderedSources + 1) * 4;
}
static_assert(OrderBytes(kMostStretches) < 48 << 10);

}  // namespace

Status LaunchStemOrder(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan) {
  return LaunchSized<StemOrder>(site, gemm.groups.count() * plan.blocks, kThreads, OrderBytes(plan.stretches),
                                OrderBytes(kMostStretches), gemm, plan);
}

}  // namespace knnconv::gpu
