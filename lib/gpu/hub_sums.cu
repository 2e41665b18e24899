#include "gpu/hub_sums.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dependent_launch.h"
#include "gpu/device.h"
#include "gpu/hub_search.h"
#include "gpu/hub_segment.h"
#include "gpu/lanes.h"

namespace knnconv::gpu {
namespace {

using hub::AddColumns, hub::FindSegment, hub::FirstRow, hub::ForEachPicked, hub::Hubs, hub::IsHubAmong;
using hub::kNodesAsked, hub::kThreads, hub::OffsetsOf, hub::PowerOfTwo, hub::Segment, hub::SegmentRoom;

constexpr int kBatchParts = 32;  // shares of a unit at most; each takes every so manyth batch entry
constexpr int kTotalParts = 32;  // shares of a hub's totals at most
constexpr int kFewUnits = 16, kPartsOfFew = 64;  // units that one kernel sums and adds, shares of the batch then

// A group's first unit has row 0 or row 1, not both: a hub that its first tap belongs to has them all. They share a
// place, which leaves one behind the last unit.
KNNCONV_DEVICE int64_t PartialRow(const Hubs& hubs, int64_t group, int64_t unit, int row, int64_t b) {
  const int64_t place = max(unit * 2 + row - 1, int64_t{0});
  return ((group * hubs.units * 2 + place) * hubs.gemm.batch + b) * hubs.gemm.columns;
}

// What AskNodes' blocks have found, in the place that the first group has left.
KNNCONV_DEVICE int32_t* AnswersOf(const Hubs& hubs) {
  return reinterpret_cast<int32_t*>(hubs.partials + (hubs.units * 2 - 1) * hubs.gemm.batch * hubs.gemm.columns);
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

template <typename Reading>
KNNCONV_DEVICE void SumItem(SegmentRoom<Reading>& room, const Hubs& hubs, int64_t parts, const SegmentItem& item) {
  using T = typename Reading::T;
  static_assert(kHubTaps <= kThreads, "a thread holds one tap of the segment");
  const TapGemm& gemm = hubs.gemm;
  const int32_t* sources = gemm.table.sources + gemm.table.source_groups.Offset(gemm.groups, item.group);
  const int32_t* slots = gemm.table.slots + gemm.table.slot_groups.Offset(gemm.groups, item.group);
  const Segment segment = FindSegment(OffsetsOf(gemm, item.group), gemm.nodes, item.unit, item.row);
  const int taps = static_cast<int>(segment.end - segment.begin), t = threadIdx.x;
  if (t < taps) {
    room.source[t] = sources[segment.begin + t];
    room.slot[t] = slots[segment.begin + t];
  }
  __syncthreads();
  const T* const source = static_cast<const T*>(gemm.source) + gemm.source_groups.Offset(gemm.groups, item.group);
  const T* const weight = static_cast<const T*>(gemm.weight) + gemm.weight_groups.Offset(gemm.groups, item.group);
  for (int64_t b = item.part; b < gemm.batch; b += parts) {
    float* const partial = hubs.partials + PartialRow(hubs, item.group, item.unit, item.row, b);
    hub::SumSegment(room, gemm, source, weight, b, taps, [&](int column, float value) { partial[column] = value; });
  }
}

// All kernels here may start while the one in front, which writes all other rows, still runs. All ways to the end wait
// for that kernel, so that what follows HubTotals follows it, too.
template <typename Reading>
__global__ void __launch_bounds__(kThreads) HubSegments(const KNNCONV_PARAMETER Hubs hubs, int64_t parts) {
  __shared__ SegmentRoom<Reading> room;
  const TapGemm& gemm = hubs.gemm;
  LaunchDependents();
  if (!HaveHubs(hubs)) return WaitForPrerequisites();
  ForEachPicked(
      gemm.groups.count() * hubs.units * 2 * parts,
      [&](int64_t i) {
        const SegmentItem item = SegmentOf(hubs, parts, i);
        return FindSegment(OffsetsOf(gemm, item.group), gemm.nodes, item.unit, item.row).exists;
      },
      [&](int64_t i) { SumItem(room, hubs, parts, SegmentOf(hubs, parts, i)); });
  WaitForPrerequisites();
}

// A hub, whose list begins in unit `first`, there at `row`, and ends in unit `last`; and a share of its work.
struct HubItem {
  uint32_t group;
  int64_t node, first, last, part;
  int row;
};

// Calls work(item) for each of `parts` shares of each hub, with all threads in step.
template <typename Work>
KNNCONV_DEVICE void ForEachHub(const Hubs& hubs, int64_t parts, const Work& work) {
  const TapGemm& gemm = hubs.gemm;
  const auto unit = [&](int64_t item) { return item / parts % hubs.units; };
  const auto group = [&](int64_t item) { return static_cast<uint32_t>(item / parts / hubs.units); };
  const auto first_row = [&](int64_t item) { return FirstRow(OffsetsOf(gemm, group(item)), gemm.nodes, unit(item)); };
  ForEachPicked(
      gemm.groups.count() * hubs.units * parts, [&](int64_t item) { return first_row(item) >= 0; },
      [&](int64_t item) {
        const int row = first_row(item);
        const Segment segment = FindSegment(OffsetsOf(gemm, group(item)), gemm.nodes, unit(item), row);
        const int64_t last = (segment.hub_end - 1) / kHubTaps;
        work(HubItem{group(item), segment.node, unit(item), last, item % parts, row});
      });
}

KNNCONV_DEVICE float Partial(const Hubs& hubs, const HubItem& item, int64_t unit, int64_t b, int64_t column) {
  return hubs.partials[PartialRow(hubs, item.group, unit, unit == item.first ? item.row : 0, b) + column];
}

KNNCONV_DEVICE void StoreTotal(const Hubs& hubs, const HubItem& item, int64_t b, int64_t column, float sum) {
  const TapGemm& gemm = hubs.gemm;
  const int64_t out = ((item.group * gemm.batch + b) * gemm.nodes + item.node) * gemm.columns + column;
  StoreElement(gemm.out, gemm.out_type, out, sum);
}

// out[b, hub, :] = sum of the hub's partial rows, for the elements [b, :] from kThreads * `part` on, in steps of
// kThreads * `parts`.
KNNCONV_DEVICE void AddPartials(const Hubs& hubs, const HubItem& item, int64_t parts) {
  __shared__ float scratch[kThreads];
  constexpr int kInFlight = 4;
  const TapGemm& gemm = hubs.gemm;
  const int64_t all = gemm.batch * gemm.columns;
  const int width = PowerOfTwo(all, kThreads), lane = threadIdx.x % width, lanes = kThreads / width;
  for (int64_t first = item.part * width; first < all; first += parts * width) {
    const int64_t at = first + lane, b = at / gemm.columns, p = at % gemm.columns;
    float sum = 0.0f;
    if (at < all) {
      for (int64_t u = item.first + threadIdx.x / width; u <= item.last; u += kInFlight * lanes) {
        float value[kInFlight] = {};
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int64_t next = u + i * lanes;
          if (next <= item.last) value[i] = Partial(hubs, item, next, b, p);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) sum += value[i];
      }
    }
    sum = AddColumns(sum, width, scratch);
    if (static_cast<int>(threadIdx.x) < width && at < all) StoreTotal(hubs, item, b, p, sum);
  }
}

__global__ void __launch_bounds__(kThreads) HubTotals(const KNNCONV_PARAMETER Hubs hubs, int64_t parts) {
  if (!HaveHubs(hubs)) return WaitForPrerequisites();
  ForEachHub(hubs, parts, [&](const HubItem& item) {
    WaitForPrerequisites();
    AddPartials(hubs, item, parts);
  });
  WaitForPrerequisites();
}

// Both of the above, where there are few units: a block sums and adds all of a hub's, for its share of the batch.
template <typename Reading>
__global__ void __launch_bounds__(kThreads) HubRows(const KNNCONV_PARAMETER Hubs hubs, int64_t parts) {
  __shared__ SegmentRoom<Reading> room;
  const TapGemm& gemm = hubs.gemm;
  if (!HaveHubs(hubs)) return WaitForPrerequisites();
  ForEachHub(hubs, parts, [&](const HubItem& item) {
    for (int64_t u = item.first; u <= item.last; ++u) {
      SumItem(room, hubs, parts, {item.group, u, item.part, u == item.first ? item.row : 0});
      __syncthreads();
    }
    WaitForPrerequisites();
    const int64_t all = CeilDiv(gemm.batch - item.part, parts) * gemm.columns;
    for (int64_t at = threadIdx.x; at < all; at += kThreads) {
      const int64_t b = item.part + at / gemm.columns * parts, p = at % gemm.columns;
      float sum = 0.0f;
      for (int64_t u = item.first; u <= item.last; ++u) sum += Partial(hubs, item, u, b, p);
      StoreTotal(hubs, item, b, p, sum);
    }
  });
  WaitForPrerequisites();
}

// launch(Reading<type, width>) as the operands' types and addresses say.
template <typename Launch>
Status LaunchReading(const TapGemm& gemm, const Launch& launch) {
  const bool in_chunks = gemm.depth % 8 == 0 && IsAligned(gemm.source) && IsAligned(gemm.weight);
  if (gemm.compute_type == Element::kF16) {
    return in_chunks ? launch(hub::Reading<Half, 8>{}) : launch(hub::Reading<Half, 1>{});
  }
  return in_chunks ? launch(hub::Reading<BFloat, 8>{}) : launch(hub::Reading<BFloat, 1>{});
}

}  // namespace

Status RunHubSums(const LaunchSite& site, const TapGemm& gemm, int64_t taps, float* partials) {
  Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  const bool empty = HubPartials(gemm, taps) == 0 || gemm.nodes == 0;
  Hubs hubs{gemm, empty ? 0 : (taps + kHubTaps - 1) / kHubTaps, partials, 0};
  const int64_t units = gemm.groups.count() * hubs.units, parts = std::min<int64_t>(gemm.batch, kBatchParts);
  const int64_t total_parts = std::min<int64_t>(CeilDiv(gemm.batch * gemm.columns, kThreads), kTotalParts);
  const int64_t resident = int64_t{device.multiprocessors} * (2048 / kThreads);  // the sums do not depend on it
  const int64_t nodes = gemm.groups.count() * gemm.nodes, nodes_of_block = int64_t{kThreads} * kNodesAsked;
  if (units > 0 && nodes > nodes_of_block) {
    const int64_t room = gemm.batch * gemm.columns;  // for answers
    hubs.asking_blocks = static_cast<int32_t>(
        std::min({CeilDiv(nodes, nodes_of_block / 4), room, int64_t{device.multiprocessors}}));
  }
  if (units <= kFewUnits && hubs.asking_blocks == 0) {
    const int64_t shares = std::min<int64_t>(gemm.batch, kPartsOfFew);
    return LaunchReading(gemm, [&](auto reading) {
      return LaunchDependent<HubRows<decltype(reading)>>(
          site, std::min<int64_t>(units * shares, device.multiprocessors), kThreads, hubs, shares);
    });
  }
  KNNCONV_GPU_RETURN_IF_ERROR(LaunchDependent<AskNodes>(site, hubs.asking_blocks, kThreads, hubs));
  KNNCONV_GPU_RETURN_IF_ERROR(LaunchReading(gemm, [&](auto reading) {
    return LaunchDependent<HubSegments<decltype(reading)>>(site, std::min(units * 2 * parts, resident), kThreads, hubs,
                                                           parts);
  }));
  return LaunchDependent<HubTotals>(site, std::min(units * total_parts, resident), kThreads, hubs, total_parts);
}

}  // namespace knnconv::gpu
