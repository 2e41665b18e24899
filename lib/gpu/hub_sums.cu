#include "gpu/hub_sums.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dependent_launch.h"
#include "gpu/device.h"
#include "gpu/hub_search.h"
#include "gpu/lanes.h"

namespace knnconv::gpu {
namespace {

using hub::FindSegment, hub::FirstRow, hub::ForEachPicked, hub::Hubs, hub::IsHubAmong, hub::kNodesAsked;
using hub::kThreads, hub::OffsetsOf, hub::Segment;

constexpr int kBatchParts = 8;  // shares of a unit at most; each takes every so manyth batch entry

// A group's first unit has row 0 or row 1, not both: a hub that its first tap belongs to has them all. They share a place,
// which leaves one behind the last unit.
KNNCONV_DEVICE int64_t PartialRow(const Hubs& hubs, int64_t group, int64_t unit, int row, int64_t b) {
  const int64_t place = max(unit * 2 + row - 1, int64_t{0});
  return ((group * hubs.units * 2 + place) * hubs.gemm.batch + b) * hubs.gemm.columns;
}

// What AskNodes' blocks have found, in the place that the first group has left.
KNNCONV_DEVICE int32_t* AnswersOf(const Hubs& hubs) {
  return reinterpret_cast<int32_t*>(hubs.partials + (hubs.units * 2 - 1) * hubs.gemm.batch * hubs.gemm.columns);
}

KNNCONV_DEVICE int PowerOfTwo(int64_t least) {
  int power = 1;
  while (power < least && power < kThreads) power *= 2;
  return power;
}

// Adds `value` over the threads of each column of [kThreads / width, width]; a column's first thread has the sum.
KNNCONV_DEVICE float AddColumns(float value, int width, float* scratch) {
  scratch[threadIdx.x] = value;
  for (int rows = kThreads / width / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < rows * width) scratch[threadIdx.x] += scratch[threadIdx.x + rows * width];
  }
  __syncthreads();
  const float sum = scratch[threadIdx.x % width];
  __syncthreads();
  return sum;
}

__global__ void __launch_bounds__(kThreads) AskNodes(const KNNCONV_PARAMETER Hubs hubs) {
  LaunchDependents();
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  const bool is_hub = SyncThreadsOr<kThreads>(IsHubAmong(hubs.gemm, first, step));
  WaitForPrerequisites();  // those in front may still use the room
  if (threadIdx.x == 0) AnswersOf(hubs)[blockIdx.x] = is_hub ? 1 : 0;
}

// Whether some node is a hub. By all threads of the block.
KNNCONV_DEVICE bool HaveHubs(const Hubs& hubs) {
  bool is_hub = false;
  if (hubs.asking_blocks == 0) {
    is_hub = IsHubAmong(hubs.gemm, threadIdx.x, kThreads);
  } else {
    WaitForPrerequisites();
    for (int i = threadIdx.x; i < hubs.asking_blocks; i += kThreads) is_hub |= AnswersOf(hubs)[i] != 0;
  }
  return SyncThreadsOr<kThreads>(is_hub);
}

// One past the last of the taps from `begin` that have its slot; slots ascend.
KNNCONV_DEVICE int CellEnd(const int32_t* slot, int begin, int taps) {
  int low = begin + 1, high = taps;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (slot[middle] == slot[begin]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A hub's part of a unit, for the batch entries b = part, part + parts, ...
struct SegmentItem {
  uint32_t group;
  int64_t unit, part;
  int row;
};

KNNCONV_DEVICE SegmentItem SegmentOf(const Hubs& hubs, int64_t parts, int64_t item) {
  SegmentItem segment;
  segment.part = item % parts;
  segment.row = static_cast<int>(item / parts % 2);
  segment.unit = item / parts / 2 % hubs.units;
  segment.group = static_cast<uint32_t>(item / parts / 2 / hubs.units);
  return segment;
}

// partial[b, :] = sum over the segment's cells (taps of one slot) of (sum of their source rows) @ weight[slot]^T, in fp32.
KNNCONV_DEVICE void SumSegment(const Hubs& hubs, int64_t parts, const SegmentItem& item) {
  static_assert(kHubTaps <= kThreads, "a thread holds one tap of the segment");
  __shared__ float scratch[kThreads], sums[kThreads], result[kThreads];
  __shared__ int32_t source[kHubTaps], slot[kHubTaps];
  const TapGemm& gemm = hubs.gemm;
  const int32_t* sources = gemm.table.sources + gemm.table.source_groups.Offset(gemm.groups, item.group);
  const int32_t* slots = gemm.table.slots + gemm.table.slot_groups.Offset(gemm.groups, item.group);
  const Segment segment = FindSegment(OffsetsOf(gemm, item.group), gemm.nodes, item.unit, item.row);
  const int taps = static_cast<int>(segment.end - segment.begin), t = threadIdx.x;
  if (t < taps) {
    source[t] = sources[segment.begin + t];
    slot[t] = slots[segment.begin + t];
  }
  __syncthreads();

  const int64_t source_base = gemm.source_groups.Offset(gemm.groups, item.group);
  const int64_t weight_base = gemm.weight_groups.Offset(gemm.groups, item.group);
  const int width = PowerOfTwo(gemm.depth), lane = t % width, lanes = kThreads / width;
  const int part = t / kGroupLanes, part_lane = t % kGroupLanes;
  for (int64_t b = item.part; b < gemm.batch; b += parts) {
    const int64_t base = source_base + b * gemm.source_rows * gemm.depth;
    for (int first = 0; first < gemm.columns; first += kThreads) {
      const int columns = min(kThreads, gemm.columns - first);
      result[t] = 0.0f;
      for (int begin = 0, end; begin < taps; begin = end) {
        end = CellEnd(slot, begin, taps);
        for (int d = 0; d < gemm.depth; d += width) {
          float sum = 0.0f;
          if (d + lane < gemm.depth) {
#pragma unroll 4
            for (int i = begin + t / width; i < end; i += lanes) {
              sum += LoadElement(gemm.source, gemm.source_type, base + int64_t{source[i]} * gemm.depth + d + lane);
            }
          }
          sum = AddColumns(sum, width, scratch);
          if (t < width) sums[t] = sum;
          __syncthreads();
          const int count = min(width, gemm.depth - d);
          // Groups of one warp take different columns and stay in step.
          for (int p = part; p - part < columns; p += kThreads / kGroupLanes) {
            const int64_t line = weight_base + (int64_t{slot[begin]} * gemm.columns + first + p) * gemm.depth + d;
            float product = 0.0f;
            for (int i = part_lane; i < count && p < columns; i += kGroupLanes) {
              product += sums[i] * LoadElement(gemm.weight, gemm.compute_type, line + i);
            }
            product = GroupSum(product);
            if (part_lane == 0 && p < columns) result[p] += product;
          }
          __syncthreads();
        }
      }
      __syncthreads();
      if (t < columns) hubs.partials[PartialRow(hubs, item.group, item.unit, item.row, b) + first + t] = result[t];
      __syncthreads();
    }
  }
}

// All kernels here may start while the one in front, which writes all other rows, still runs. All ways to the end wait
// for that kernel, so that what follows HubTotals follows it, too.
__global__ void __launch_bounds__(kThreads) HubSegments(const KNNCONV_PARAMETER Hubs hubs, int64_t parts) {
  const TapGemm& gemm = hubs.gemm;
  LaunchDependents();
  if (!HaveHubs(hubs)) return WaitForPrerequisites();
  ForEachPicked(
      gemm.groups.count() * hubs.units * 2 * parts,
      [&](int64_t i) {
        const SegmentItem item = SegmentOf(hubs, parts, i);
        return FindSegment(OffsetsOf(gemm, item.group), gemm.nodes, item.unit, item.row).exists;
      },
      [&](int64_t i) { SumSegment(hubs, parts, SegmentOf(hubs, parts, i)); });
  WaitForPrerequisites();
}

// out[b, hub, :] = sum of the partial rows of the hub whose list begins in `unit`.
KNNCONV_DEVICE void AddPartials(const Hubs& hubs, uint32_t group, int64_t unit) {
  __shared__ float scratch[kThreads];
  const TapGemm& gemm = hubs.gemm;
  const int32_t* offsets = OffsetsOf(gemm, group);
  const int row = FirstRow(offsets, gemm.nodes, unit);
  const Segment segment = FindSegment(offsets, gemm.nodes, unit, row);
  const int64_t last = (segment.hub_end - 1) / kHubTaps, all = gemm.batch * gemm.columns;
  const int width = PowerOfTwo(all), lane = threadIdx.x % width, lanes = kThreads / width;
  for (int64_t first = 0; first < all; first += width) {
    const int64_t at = first + lane, b = at / gemm.columns, p = at % gemm.columns;
    float sum = 0.0f;
    if (at < all) {
      for (int64_t u = unit + threadIdx.x / width; u <= last; u += lanes) {
        sum += hubs.partials[PartialRow(hubs, group, u, u == unit ? row : 0, b) + p];
      }
    }
    sum = AddColumns(sum, width, scratch);
    if (static_cast<int>(threadIdx.x) < width && at < all) {
      const int64_t out = ((group * gemm.batch + b) * gemm.nodes + segment.node) * gemm.columns + p;
      StoreElement(gemm.out, gemm.out_type, out, sum);
    }
  }
}

__global__ void __launch_bounds__(kThreads) HubTotals(const KNNCONV_PARAMETER Hubs hubs) {
  const TapGemm& gemm = hubs.gemm;
  if (!HaveHubs(hubs)) return WaitForPrerequisites();
  auto group = [&](int64_t item) { return static_cast<uint32_t>(item / hubs.units); };
  ForEachPicked(
      gemm.groups.count() * hubs.units,
      [&](int64_t item) {
        return FirstRow(OffsetsOf(gemm, group(item)), gemm.nodes, item % hubs.units) >= 0;
      },
      [&](int64_t item) {
        WaitForPrerequisites();
        AddPartials(hubs, group(item), item % hubs.units);
      });
  WaitForPrerequisites();
}

}  // namespace

Status RunHubSums(const LaunchSite& site, const TapGemm& gemm, int64_t taps, float* partials) {
  Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  const bool empty = HubPartials(gemm, taps) == 0 || gemm.nodes == 0;
  Hubs hubs{gemm, empty ? 0 : (taps + kHubTaps - 1) / kHubTaps, partials, 0};
  const int64_t units = gemm.groups.count() * hubs.units, parts = std::min<int64_t>(gemm.batch, kBatchParts);
  const int64_t resident = int64_t{device.multiprocessors} * (2048 / kThreads);  // the sums do not depend on it
  const int64_t nodes = gemm.groups.count() * gemm.nodes, nodes_of_block = int64_t{kThreads} * kNodesAsked;
  if (units > 0 && nodes > nodes_of_block) {
    const int64_t room = gemm.batch * gemm.columns;  // for answers
    hubs.asking_blocks = static_cast<int32_t>(
        std::min({CeilDiv(nodes, nodes_of_block / 4), room, int64_t{device.multiprocessors}}));
  }
  KNNCONV_GPU_RETURN_IF_ERROR(LaunchDependent<AskNodes>(site, hubs.asking_blocks, kThreads, hubs));
  KNNCONV_GPU_RETURN_IF_ERROR(
      (LaunchDependent<HubSegments>(site, std::min(units * 2 * parts, resident), kThreads, hubs, parts)));
  return LaunchDependent<HubTotals>(site, std::min(units, resident), kThreads, hubs);
}

}  // namespace knnconv::gpu
