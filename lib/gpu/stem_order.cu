// The source order of a stem's taps, by stretch: of every kOrderedSources sources, the taps of the first stretch of
// rows of g come first, source by source, then those of the second, as the blocks of stem_dinput_kernel.h go through
// them.
//
//     place of a tap's products within the stretch = slot * slot_step + row % stretch * row_step
//
// Places stand in quads of 16 bits: a source's first four of a stretch where they are found without looking, all others
// in a list. What a quad lacks are places whose products are 0.
//
// A block has kOrderedSources sources, and a *cell* for each in each stretch. Taps of cells are counted, and quads
// summed up before each; then a warp goes through a source's taps, 32 at a time, and finds how many of them are of the
// same cell and stand before each. The kernel that reads all this may start meanwhile. Bound by latency.
#include "gpu/dependent_launch.h"
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
    const int count = GroupSumUpTo(cell < cells ? counts[cell] : 0);
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
  LaunchDependents();
  const int cells = plan.stretches * kOrderedSources, t = threadIdx.x;
  uint16_t* const firsts = reinterpret_cast<uint16_t*>(shared);           // [stretches, kOrderedSources, 4]
  int32_t* const ends = reinterpret_cast<int32_t*>(firsts + cells * 4);  // [stretches, kOrderedSources], in quads
  int32_t* const nexts = ends + cells;                                   // the cell's taps that have their place
  int32_t* const totals = nexts + cells;
  int32_t* const begins = totals + cells / kGroupLanes;  // [kOrderedSources + 1]

  const uint32_t group = blockIdx.x / plan.blocks;
  const int32_t* const offsets = gemm.table.offsets + gemm.table.offset_groups.Offset(gemm.groups, group);
  const int64_t block = blockIdx.x % plan.blocks, first_node = block * kOrderedSources;
  const int64_t block_begin = SourceOffset(offsets, first_node);
  if (t <= kOrderedSources) {
    begins[t] = static_cast<int32_t>(SourceOffset(offsets, min(first_node + t, gemm.nodes)) - block_begin);
  }
  const uint32_t nowhere = static_cast<uint32_t>(plan.nowhere) * 0x10001u;
  for (int cell = t; cell < cells; cell += kThreads) {
    ends[cell] = nexts[cell] = 0;
    reinterpret_cast<uint2*>(firsts)[cell] = make_uint2(nowhere, nowhere);
  }
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
  for (int cell = t; cell < cells; cell += kThreads) ends[cell] = max(ends[cell] - 1, 0) / 4;
  __syncthreads();
  AddUp(ends, totals, cells);

  const int64_t before = group * plan.group_quads + plan.BlockQuads(block_begin);
  uint16_t* const quads = reinterpret_cast<uint16_t*>(plan.quads + before);
  const auto end_before = [&](int cell) { return cell == 0 ? 0 : ends[cell - 1]; };
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
      const int cell = row.quotient * kOrderedSources + source;
      const int number = nexts[cell] + __popc(same & ((1u << lane) - 1));
      SyncWarp();
      if (exists && same >> lane == 1) nexts[cell] = number + 1;  // the last of its stretch
      SyncWarp();
      const int place = slot * plan.slot_step + row.remainder * plan.row_step;
      uint16_t* const to = number < 4 ? firsts + cell * 4 + number : quads + end_before(cell) * 4 + number - 4;
      if (exists) *to = static_cast<uint16_t>(place);
    }
  }
  __syncthreads();
  for (int cell = t; cell < cells; cell += kThreads) {
    uint16_t* const end = quads + ends[cell] * 4;
    const int quads_of = ends[cell] - end_before(cell);
    for (int lacks = quads_of * 4 - max(nexts[cell] - 4, 0); lacks > 0; --lacks) {
      end[-lacks] = static_cast<uint16_t>(plan.nowhere);
    }
  }
  constexpr int kPairs = kOrderedSources / 2;
  for (int pair = t; pair < cells / 2; pair += kThreads) {
    const int cell = pair * 2, begin = end_before(cell), middle = ends[cell];
    const int64_t stretch = int64_t{group} * plan.stretches + pair / kPairs;
    const int64_t to = (stretch * plan.blocks + block) * kPairs + pair % kPairs;
    plan.firsts[to] = reinterpret_cast<const uint4*>(firsts)[pair];
    plan.rests[to] = make_uint2(static_cast<uint32_t>(before + begin),
                                static_cast<uint32_t>(middle - begin + ((ends[cell + 1] - middle) << 16)));
  }
}

constexpr int OrderBytes(int stretches) {
  return stretches * kOrderedSources * 16 + stretches * kOrderedSources / kGroupLanes * 4 + (kOrderedSources + 1) * 4;
}
static_assert(OrderBytes(kMostStretches) < 48 << 10);

}  // namespace

Status LaunchStemOrder(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan) {
  return LaunchSized<StemOrder>(site, gemm.groups.count() * plan.blocks, kThreads, OrderBytes(plan.stretches),
                                OrderBytes(kMostStretches), gemm, plan);
}

}  // namespace knnconv::gpu
