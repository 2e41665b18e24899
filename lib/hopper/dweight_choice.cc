#include "hopper/dweight_choice.h"

#include <algorithm>
#include <numeric>

#include "gpu/arithmetic.h"
#include "hopper/device.h"
#include "hopper/dweight_chain.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned, gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps;

constexpr int kSpare = 3;  // multiprocessors that let the second kernel start early

// Whether the line is cut alike in all tiles, so that no block works on two.
bool AreCutsAlike(const DweightSizes& sizes, int64_t tiles, int64_t blocks) {
  return !sizes.has_slots && blocks % tiles == 0;
}

// Estimated cycles of a multiprocessor, fitted to times of 37 shapes in all tiles and several numbers of blocks on an
// H200, by which what takes least takes 0.1 % longer than the fastest on average.
double CyclesOf(const DweightPlan& plan, int64_t tiles) {
  constexpr double kFill = 37.5;        // bytes a cycle from L2 to shared memory
  constexpr double kShared = 102;       // bytes a cycle that shared memory gives or takes
  constexpr double kProduct = 1.33;     // of the tensor cores' peak
  constexpr double kReduction = 1.13;   // of a part written and read again
  constexpr double kLateStart = 1050;   // of the second kernel, where the first one leaves no multiprocessor
  constexpr double kSecondStore = 0.8;  // of a block that works on two tiles
  // Blocks whose stretches begin alike, in tiles of their own, read the same boxes at about the same time. Where fewer
  // do than there are tiles, and than kEnough, steps take up to a sixth longer.
  constexpr double kApart = 0.18, kEnough = 18;
  // Where rows are gathered:
  constexpr double kGatherFill = 40;
  constexpr double kGatherL2Bytes = 60e6, kMissCost = 2.5;  // of g's boxes, likewise
  constexpr double kGatherTime = 1000;                      // until the rows of a box are there
  constexpr int kRing = 212 * 1024;                         // bytes of all stages
  const DweightSizes& sizes = plan.sizes;
  const DweightTileSize& size = kDweightTiles[plan.tile];
  const double row_boxes = double(plan.boxes) / double(plan.row_tiles);
  const double column_boxes = double(CeilDiv(sizes.columns, kBox)) / double(plan.column_tiles);
  const double row_box_bytes = double(size.has_strips() ? sizes.strip_lines * kLineBytes : kBoxBytes);
  const double row_bytes = row_boxes * row_box_bytes, column_bytes = column_boxes * kBoxBytes;
  const double column_cost = sizes.gathers && sizes.bytes > kGatherL2Bytes ? kMissCost : sizes.column_cost;
  double fill = (row_bytes * sizes.box_cost + column_bytes * column_cost) / (sizes.gathers ? kGatherFill : kFill);
  if (sizes.gathers) {
    // Two stages are with the products; the others wait for rows.
    const int stages = kRing / ((size.row_boxes() + size.columns / kBox) * kBoxBytes);
    fill = std::max(fill, kGatherTime * row_boxes / (stages - 2));
  }
  const double products = size.row_boxes() * size.taps * size.columns * (kStep / 32.0) * kProduct;
  // Products of 64 rows read these and all of their columns.
  const double reads = size.row_boxes() * (kBoxBytes + size.width() * kStep * 2.0) / kShared;
  const double step = std::max({fill, products, reads + (row_bytes + column_bytes) / kShared});
  const double steps = double(CeilDiv(tiles * plan.steps, plan.blocks));
  const double tile_bytes = double(size.elements()) * 4;
  const double chains = std::max(1.0, std::min(steps, double(plan.steps)) * kStep / double(sizes.chain));
  const bool alike = AreCutsAlike(sizes, tiles, plan.blocks);
  const double ends = std::max(1.0, steps / double(plan.steps)) + (alike ? 0 : kSecondStore);
  const double stores = ends * (2 * chains - 1) * tile_bytes / kFill;
  const double parts = double(plan.blocks + (alike ? 0 : tiles));
  const double sums = kReduction * parts * tile_bytes / (kFill * sizes.multiprocessors);
  const double late = plan.blocks > sizes.multiprocessors - kSpare ? kLateStart : 0;
  const double together = sizes.has_slots ? 1 : double(std::gcd(plan.blocks, tiles));
  const double apart = alike ? 0 : kApart * std::max(0.0, 1 - together / kEnough);
  return steps * step * (1 + apart) + stores + sums + late;
}

// With as many blocks as there are multiprocessors, or with somewhat fewer that cut tiles, or pairs of them, alike:
// whichever takes the least time.
DweightPlan PlanTile(const DweightSizes& sizes, int tile) {
  const DweightTileSize& size = kDweightTiles[tile];
  DweightPlan plan;
  plan.sizes = sizes;
  if (size.has_strips() && size.taps != sizes.strip_taps) return plan;
  if (sizes.gathers && !CanGather(size, sizes.has_slots)) return plan;
  plan.boxes = size.has_strips() ? sizes.strips : sizes.boxes;
  plan.steps = size.has_strips() ? sizes.strip_steps : sizes.steps;
  plan.row_tiles = CeilDiv(plan.boxes, size.row_boxes());
  plan.column_tiles = CeilDiv(sizes.columns, size.columns);
  const int64_t tiles = sizes.lists * plan.row_tiles * plan.column_tiles;
  // Each block and each tile may bring a part, and its sums for db.
  const int64_t part = size.elements() + (sizes.sums_rows ? 0 : kBiasSums);
  const int64_t sums_of_rows = RowTeams(size, sizes.gathers) * CeilDiv(sizes.columns, kBiasSums) * kBiasSums;
  const int64_t row_sums = sizes.sums_rows ? sums_of_rows : 0;
  const int64_t parts_of_tiles = tiles * part + (sizes.groups.results - 1) * row_sums;
  const int64_t room = sizes.partial_elements - StartElements(sizes) - parts_of_tiles;
  const int64_t most = std::min({int64_t{sizes.multiprocessors}, room / (part + row_sums), tiles * plan.steps});
  if (most < 1) return plan;
  plan.tile = tile;
  plan.blocks = most;
  plan.cycles = CyclesOf(plan, tiles);
  if (sizes.has_slots) return plan;
  for (int64_t limit : {most, std::min<int64_t>(most, sizes.multiprocessors - kSpare)}) {
    for (int64_t unit : {tiles, tiles % 2 == 0 ? tiles / 2 : tiles}) {
      DweightPlan other = plan;
      other.blocks = limit / unit * unit;
      if (other.blocks < 1) continue;
      other.cycles = CyclesOf(other, tiles);
      if (other.cycles < plan.cycles) plan = other;
    }
  }
  return plan;
}

template <typename Taps>
DweightPlan Plan(const Dweight& dweight, const Taps& taps, const gpu::Device& device, int forced) {
  DweightSizes sizes = SizesOf(dweight, taps);
  sizes.columns = dweight.columns;
  sizes.partial_elements = dweight.partial_elements;
  sizes.chain = ChainPositions(dweight.dw_type);
  sizes.multiprocessors = device.multiprocessors;
  if (forced >= 0) return PlanTile(sizes, forced);
  DweightPlan best;
  for (int tile = 0; tile < kDweightTileCount; ++tile) {
    const DweightPlan plan = PlanTile(sizes, tile);
    // Of equal ones the last: two warpgroups of all 256 columns read less of shared memory than pairs of boxes.
    if (plan.tile >= 0 && (best.tile < 0 || plan.cycles <= best.cycles)) best = plan;
  }
  return best;
}

bool IsInReach(const Dweight& dweight, const DenseTaps& taps) {
  DweightGroups groups;
  if (!FindGroups(dweight, taps, &groups)) return false;
  constexpr int kMostStride = 8, kMostOffset = 255;  // of the copy engine
  const int32_t kernel[2] = {dweight.slots / taps.kernel_width, taps.kernel_width};
  for (int d = 0; d < 2; ++d) {
    if (taps.in_size[d] == 0 || taps.out_size[d] == 0) return false;
    const Corners corners = CornersOf(taps, d);
    if (std::min(corners.lower, corners.upper) < kLeastCorner) return false;
    if (std::max(corners.lower, corners.upper) > kMostCorner) return false;
    if (taps.stride[d] > kMostStride || int64_t{kernel[d] - 1} * taps.dilation[d] > kMostOffset) return false;
  }
  return HasShortNumbers(Positions(dweight, taps, taps.out_size[1]));
}

// Rows of x and g that are gathered have numbers over all groups and batch entries; over groups, so have rows of tables
// and slots of dw.
template <typename Taps>
bool HasShortRows(const Dweight& dweight, const Taps& taps) {
  const int64_t rows = dweight.batch * std::max(taps.table.sources, taps.table.outputs);
  const int64_t most = std::max({rows, int64_t{taps.table.outputs}, int64_t{dweight.slots} + 1});
  const double groups = double(dweight.shapes.groups.count()) * double(dweight.shapes.members.count());
  return groups * double(most) <= INT32_MAX && HasShortNumbers(GatheredPositions(dweight, taps));
}

template <typename Taps>
bool IsInReach(const Dweight& dweight, const Taps& taps) {
  const gpu::NeighborTable& table = taps.table;
  if (table.sources == 0 || table.outputs == 0 || table.neighbours == 0) return false;
  DweightGroups groups;
  return FindGroups(dweight, taps, &groups) && (!Gathers(dweight, taps) || HasShortRows(dweight, taps));
}

// Whether the schedule's line has 31 bits however dw is tiled, and whichever slot has the taps.
bool HasShortLine(const Dweight& dweight, const DweightSizes& sizes) {
  const double row_boxes = double(sizes.lists) * double(sizes.boxes);
  const double steps = row_boxes * double(sizes.steps + std::max(StepsOfRow(dweight), int64_t{sizes.groups.members}));
  return steps * double(CeilDiv(sizes.columns, kBox)) < INT32_MAX;
}

bool Fits(const Dweight& dweight) {
  return dweight.slots > 0 && dweight.batch > 0 && dweight.channels > 0 && dweight.columns > 0 &&
         dweight.x_type == dweight.g_type && dweight.channels % 8 == 0 && dweight.columns % 8 == 0 &&
         IsAligned(dweight.x) && IsAligned(dweight.g) && IsAligned(dweight.partials) && IsAligned(dweight.dw) &&
         IsAligned(dweight.db);
}

// Few channels or columns leave too much of a box empty.
bool IsWide(const Dweight& dweight) {
  constexpr int kLeastWidth = 48;
  return dweight.channels >= kLeastWidth && dweight.columns >= kLeastWidth;
}

bool Pays(const Dweight& dweight, const DenseTaps&) { return IsWide(dweight); }

template <typename Taps>
bool Pays(const Dweight& dweight, const Taps& taps) {
  return Gathers(dweight, taps) ? PaysToGather(dweight) : IsWide(dweight);
}

template <typename Taps>
bool Choose(const Dweight& dweight, const Taps& taps, const gpu::Device& device, bool forced, DweightPlan* plan) {
  if (!IsHopper(device) || !Fits(dweight) || !IsInReach(dweight, taps)) return false;
  if (!forced && !Pays(dweight, taps)) return false;
  *plan = Plan(dweight, taps, device, -1);
  return plan->tile >= 0 && HasShortLine(dweight, plan->sizes);
}

}  // namespace

DweightPlan PlanDweight(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device, int tile) {
  return Plan(dweight, taps, device, tile);
}
DweightPlan PlanDweight(const Dweight& dweight, const ColumnTaps& taps, const gpu::Device& device, int tile) {
  const bool in_samples = tile == kInSamples;
  DweightPlan plan = Plan(dweight, taps, device, in_samples ? -1 : tile);
  if (in_samples || tile < 0) plan.samples = CutSampleDweight(dweight, taps, device, in_samples);
  return plan;
}
DweightPlan PlanDweight(const Dweight& dweight, const SlotTaps& taps, const gpu::Device& device, int tile) {
  return Plan(dweight, taps, device, tile);
}

bool ChooseDweight(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan) {
  return Choose(dweight, taps, device, forced, plan);
}
bool ChooseDweight(const Dweight& dweight, const ColumnTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan) {
  if (!Choose(dweight, taps, device, forced, plan)) return false;
  plan->samples = CutSampleDweight(dweight, taps, device, /*forced=*/false);
  return true;
}
bool ChooseDweight(const Dweight& dweight, const SlotTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan) {
  return Choose(dweight, taps, device, forced, plan);
}

}  // namespace knnconv::hopper
