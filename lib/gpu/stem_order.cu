// The source order of a stem's taps, by stretch: of every kOrderedSources sources, the taps of the first stretch of slots
// come first, source by source, then those of the second, as the blocks of stem_dinput_kernel.h go through them.
//
//     entry = where the tap's products lie within the stretch:  slot % stretch * slot_step + row
//
// A block has kOrderedSources sources, a few lanes each; counts of (stretch, source) are summed up before it, and every
// tap's place follows from its place in the source's list. Hubs' taps are left out. Bound by latency.
#include "gpu/lanes.h"
#include "gpu/stem_dinput.h"
#include "gpu/tap_layers.h"

namespace knnconv::gpu {
namespace {

constexpr int kLanes = 16;  // of a source
constexpr int kThreads = kOrderedSources * kLanes;

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
  const int cells = plan.stretches * kOrderedSources;
  int32_t* const ends = reinterpret_cast<int32_t*>(shared);  // [stretches, kOrderedSources]
  int32_t* const firsts = ends + cells;                      // the cell's first tap in its source's list
  int32_t* const totals = firsts + cells;

  const uint32_t group = blockIdx.x / plan.blocks, block = blockIdx.x % plan.blocks;
  const int32_t* const offsets = gemm.table.offsets + gemm.table.offset_groups.Offset(gemm.groups, group);
  const int source = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int64_t first_node = int64_t{block} * kOrderedSources, node = first_node + source;
  const int64_t block_begin = SourceOffset(offsets, first_node);
  const int64_t begin = SourceOffset(offsets, min(node, gemm.nodes));
  const int64_t all = SourceOffset(offsets, min(node + 1, gemm.nodes)) - begin;
  const int count = all > kHubTaps ? 0 : static_cast<int>(all);
  const int32_t* const slots = gemm.table.slots + gemm.table.slot_groups.Offset(gemm.groups, group) + begin;
  const int32_t* const rows = gemm.table.sources + gemm.table.source_groups.Offset(gemm.groups, group) + begin;

  for (int cell = threadIdx.x; cell < cells; cell += kThreads) ends[cell] = 0;
  __syncthreads();
#pragma unroll 4
  for (int tap = lane; tap < count; tap += kLanes) {
    atomicAdd(&ends[plan.by_stretch.Divide(ReadOnly(slots + tap)).quotient * kOrderedSources + source], 1);
  }
  __syncthreads();
  if (threadIdx.x < kOrderedSources) {
    int before = 0;
    for (int stretch = 0; stretch < plan.stretches; ++stretch) {
      const int cell = stretch * kOrderedSources + static_cast<int>(threadIdx.x);
      firsts[cell] = before;
      before += ends[cell];
    }
  }
  __syncthreads();
  AddUp(ends, totals, cells);

  uint16_t* const to = plan.ends + int64_t{blockIdx.x} * cells;
  for (int cell = threadIdx.x; cell < cells; cell += kThreads) to[cell] = static_cast<uint16_t>(ends[cell]);
  uint16_t* const entries = plan.entries + group * plan.taps + block_begin;
#pragma unroll 4
  for (int tap = lane; tap < count; tap += kLanes) {
    const Divisor::Result slot = plan.by_stretch.Divide(ReadOnly(slots + tap));
    const int cell = slot.quotient * kOrderedSources + source;
    const int place = (cell == 0 ? 0 : ends[cell - 1]) + tap - firsts[cell];
    entries[place] = static_cast<uint16_t>(slot.remainder * plan.slot_step + ReadOnly(rows + tap));
  }
}

constexpr int OrderBytes(int stretches) { return stretches * kOrderedSources * 8 + stretches * kOrderedSources / kGroupLanes * 4; }

}  // namespace

Status LaunchStemOrder(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan) {
  return LaunchSized<StemOrder>(site, gemm.groups.count() * plan.blocks, kThreads, OrderBytes(plan.stretches),
                                OrderBytes(kMostStretches), gemm, plan);
}

}  // namespace knnconv::gpu
