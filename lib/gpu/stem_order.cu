// The source order of a stem's taps, by stretch: of every kOrderedSources sources, the taps of the first stretch of
// rows of g come first, source by source, then those of the second, as the blocks of stem_dinput_kernel.h go through
// them.
//
//     place of a tap's products within the stretch = slot * slot_step + row % stretch
//
// Places stand in pairs of 16 bits, and every second source ends a quad of them; a list that fills neither ends with
// places whose products are 0. Quads are dealt to rows, one of each lane, so that a warp reads neighbours.
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

// A row of a visit's quads: the lanes that have one, and how many quads come before. No row of a visit with long lists
// has lanes.
struct QuadRow {
  uint32_t lanes;
  int32_t before;
};

// Pairs of the block before those of a lane's two sources.
KNNCONV_DEVICE int PairsBefore(const int32_t* ends, int stretch, int lane) {
  const int cell = stretch * kOrderedSources + lane * 2;
  return cell == 0 ? 0 : ends[cell - 1];
}

// Writes what a visit says, and finds its rows. A group of lanes calls, one for each of the visit's.
KNNCONV_DEVICE void OpenVisit(const int32_t* ends, int stretch, int64_t before, uint32_t* visit, QuadRow* rows) {
  static_assert(kOrderedSources == 2 * kGroupLanes);
  const int lane = threadIdx.x % kGroupLanes, begin = PairsBefore(ends, stretch, lane);
  const int* const own = ends + stretch * kOrderedSources + lane * 2;
  const int quads = (own[1] - begin) / 2, first_pairs = own[0] - begin;
  visit[1 + lane] = static_cast<uint32_t>(quads) | static_cast<uint32_t>(first_pairs) << 16;
  if (lane == 0) visit[0] = static_cast<uint32_t>((before + begin) / 2);
  const bool is_long = GroupBallot(quads > kMostQuadRows, kGroupLanes) != 0;
  int quads_before = 0;
#pragma unroll 1
  for (int row = 0; row < kMostQuadRows; ++row) {
    const uint32_t lanes = GroupBallot(quads > row, kGroupLanes);
    if (lane == 0) rows[row] = {is_long ? 0 : lanes, quads_before};
    quads_before += __popc(lanes);
  }
}

// Where a place of a cell goes, given as if all lists stood one behind the other.
KNNCONV_DEVICE int InRows(const int32_t* ends, const QuadRow* rows, int cell, int place) {
  const int stretch = cell / kOrderedSources, lane = cell % kOrderedSources / 2;
  const int inner = place - PairsBefore(ends, stretch, lane) * 2, row = inner / 4;
  if (rows[stretch * kMostQuadRows].lanes == 0) return place;
  const QuadRow& own = rows[stretch * kMostQuadRows + row];
  const int quad = own.before + __popc(own.lanes & ((1u << lane) - 1));
  return PairsBefore(ends, stretch, 0) * 2 + quad * 4 + inner % 4;
}

__global__ void __launch_bounds__(kThreads)
    StemOrder(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemDinputPlan plan) {
  KNNCONV_DYNAMIC_SHARED(shared);
  const int cells = plan.stretches * kOrderedSources, t = threadIdx.x;
  int32_t* const ends = reinterpret_cast<int32_t*>(shared);  // [stretches, kOrderedSources], in pairs
  int32_t* const nexts = ends + cells;                       // the cell's next place in the block
  int32_t* const totals = nexts + cells;
  QuadRow* const rows_of_quads = reinterpret_cast<QuadRow*>(totals + cells / kGroupLanes);
  int32_t* const begins = reinterpret_cast<int32_t*>(rows_of_quads + plan.stretches * kMostQuadRows);

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
  for (int cell = t * 2; cell < cells; cell += kThreads * 2) {
    const int first = (ends[cell] + 1) / 2, second = (ends[cell + 1] + 1) / 2;
    ends[cell] = first;
    ends[cell + 1] = second + (first + second) % 2;
  }
  __syncthreads();
  AddUp(ends, totals, cells);

  const int64_t before = plan.BlockPairs(block_begin, block);
  uint32_t* const visits = plan.visits + int64_t{blockIdx.x} * plan.stretches * kVisitWords;
  uint16_t* const places = reinterpret_cast<uint16_t*>(plan.pairs + group * plan.group_pairs + before);
  for (int cell = t; cell < cells; cell += kThreads) nexts[cell] = cell == 0 ? 0 : ends[cell - 1] * 2;
  const int lane = t % kGroupLanes;
#pragma unroll 1
  for (int stretch = t / kGroupLanes; stretch < plan.stretches; stretch += kThreads / kGroupLanes) {
    OpenVisit(ends, stretch, before, visits + stretch * kVisitWords, rows_of_quads + stretch * kMostQuadRows);
  }
  __syncthreads();
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
      const int place = nexts[cell] + __popc(same & ((1u << lane) - 1));
      SyncWarp();
      if (exists && same >> lane == 1) nexts[cell] = place + 1;  // the last of its stretch
      SyncWarp();
      if (exists) {
        places[InRows(ends, rows_of_quads, cell, place)] = static_cast<uint16_t>(slot * plan.slot_step + row.remainder);
      }
    }
  }
  __syncthreads();
  for (int cell = t; cell < cells; cell += kThreads) {
    for (int place = nexts[cell]; place < ends[cell] * 2; ++place) {
      places[InRows(ends, rows_of_quads, cell, place)] = static_cast<uint16_t>(plan.nowhere);
    }
  }
}

constexpr int OrderBytes(int stretches) {
  return stretches * (kOrderedSources * 8 + kOrderedSources / kGroupLanes * 4 + kMostQuadRows * 8) +
         (kOrderedSources + 1) * 4;
}
static_assert(OrderBytes(kMostStretches) < 48 << 10);

}  // namespace

Status LaunchStemOrder(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan) {
  return LaunchSized<StemOrder>(site, gemm.groups.count() * plan.blocks, kThreads, OrderBytes(plan.stretches),
                                OrderBytes(kMostStretches), gemm, plan);
}

}  // namespace knnconv::gpu
