#include "hopper/dweight_choice.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dweight_plan.h"
#include "hopper/device.h"
#include "hopper/dweight_chain.h"
#include "hopper/dweight_strips.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned, gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps;

constexpr int kLeastCorner = -128, kMostCorner = 127;  // of the copy engine's pixels

bool HasGroups(const Dweight& dweight) {
  return dweight.shapes.groups.count() != 1 || dweight.shapes.members.count() != 1;
}

bool HasShortNumbers(int64_t positions) { return positions <= INT32_MAX - 2 * kStep; }

// False where an operand belongs to some of the group dimensions only, or some groups are summed and others are not.
bool FindGroups(const Dweight& dweight, const gpu::GroupStrides& tables, DweightGroups* groups) {
  const gpu::GroupShapes& shapes = dweight.shapes;
  const int64_t results = shapes.groups.count(), members = shapes.members.count();
  if (std::min(results, members) != 1 || std::max(results, members) > INT32_MAX) return false;
  const gpu::GroupShape& shape = members > 1 ? shapes.members : shapes.groups;
  int64_t x, g, table;
  if (!gpu::FindStep(shape, dweight.x_groups, &x) || !gpu::FindStep(shape, dweight.g_groups, &g) ||
      !gpu::FindStep(shape, tables, &table)) {
    return false;
  }
  *groups = {static_cast<int32_t>(results), static_cast<int32_t>(members), x > 0, g > 0, table > 0};
  return true;
}

// Whether strips can serve a dense convolution that is in reach.
bool HasStrips(const Dweight& dweight, const DenseTaps& taps) {
  return !HasGroups(dweight) && AreStripsDense(taps) && StripUpper(taps) >= kLeastCorner &&
         std::max(StripUpper(taps), CotangentUpper(taps)) <= kMostCorner &&
         HasShortNumbers(Positions(dweight, taps, StripPitch(taps)));
}

// Each result has pixels of its own, in whole steps: the next one's would follow in the last.
bool FindGroups(const Dweight& dweight, const DenseTaps& taps, DweightGroups* groups) {
  if (!FindGroups(dweight, gpu::GroupStrides{}, groups) || groups->members > 1) return false;
  const bool has_whole_steps = Positions(dweight, taps, taps.out_size[1]) % kStep == 0;
  return groups->results == 1 || ((!groups->own_x || has_whole_steps) &&
                                  groups->results * std::max(dweight.batch, int64_t{dweight.slots}) <= INT32_MAX);
}

DweightSizes SizesOf(const Dweight& dweight, const DenseTaps& taps) {
  constexpr double kPixelCost = 1.12, kStridedCost = 1.6;  // where steps skip pixels
  DweightSizes sizes;
  FindGroups(dweight, taps, &sizes.groups);
  sizes.lists = sizes.groups.results;
  sizes.boxes = int64_t{dweight.slots} * ChannelBoxes(dweight);
  sizes.steps = CeilDiv(Positions(dweight, taps, taps.out_size[1]), kStep);
  sizes.box_cost = taps.stride[0] > 1 || taps.stride[1] > 1 ? kStridedCost : kPixelCost;
  if (HasStrips(dweight, taps)) {
    sizes.strip_taps = taps.kernel_width;
    sizes.strip_lines = StripLines(taps);
    sizes.strips = sizes.boxes / taps.kernel_width;
    sizes.strip_steps = CeilDiv(Positions(dweight, taps, StripPitch(taps)), kStep);
  }
  return sizes;
}

// Gathering takes longer than the copy engine, so that boxes of channels and columns have to be full, or half full
// where there are several.
bool PaysToGather(const Dweight& dweight) {
  const int64_t boxes = ChannelBoxes(dweight) * CeilDiv(dweight.columns, kBox);
  return dweight.channels >= kBox && dweight.columns >= kBox &&
         2 * int64_t{dweight.channels} * dweight.columns >= boxes * kBox * kBox;
}

// Whether rows of x are gathered one by one: boxes are of one group, and of the batch entries of one node, those that
// do not exist included.
bool Gathers(const Dweight& dweight) {
  constexpr int64_t kLeastBatchOfBoxes = 32;
  if (dweight.batch < kLeastBatchOfBoxes || HasGroups(dweight)) return true;
  return 6 * dweight.batch < 5 * StepsOfRow(dweight) * kStep && PaysToGather(dweight);
}

constexpr double kL2Bytes = 60e6;  // of an H200

double BytesOf(const Dweight& dweight, const ColumnTaps& taps) {
  const double groups = double(dweight.shapes.groups.count()) * double(dweight.shapes.members.count());
  const double elements = double(taps.table.sources) * dweight.channels + double(taps.table.outputs) * dweight.columns;
  return 2 * groups * double(dweight.batch) * elements;
}

// Of a list.
int64_t GatheredPositions(const Dweight& dweight, const ColumnTaps& taps) {
  return dweight.shapes.members.count() * dweight.batch * taps.table.outputs;
}

DweightSizes SizesOf(const Dweight& dweight, const ColumnTaps& taps) {
  constexpr double kGatherCost = 1.6;  // of a box whose lines threads copy
  DweightSizes sizes;
  sizes.lists = 1;
  sizes.boxes = int64_t{dweight.slots} * ChannelBoxes(dweight);
  sizes.steps = taps.table.outputs * StepsOfRow(dweight);
  if (Gathers(dweight)) {
    sizes.gathers = true;
    FindGroups(dweight, taps.index_groups, &sizes.groups);
    sizes.lists = sizes.groups.results;
    sizes.steps = CeilDiv(GatheredPositions(dweight, taps), kStep);
    sizes.box_cost = kGatherCost;
    sizes.exceeds_l2 = BytesOf(dweight, taps) > kL2Bytes;
    sizes.sums_rows = dweight.db != nullptr;
  }
  return sizes;
}

// As if all slots had equally many taps.
DweightSizes SizesOf(const Dweight& dweight, const SlotTaps& taps) {
  const int64_t rows = taps.table.outputs;
  DweightSizes sizes;
  sizes.lists = dweight.slots;
  sizes.boxes = ChannelBoxes(dweight);
  sizes.steps = CeilDiv(rows * taps.table.neighbours, dweight.slots) * StepsOfRow(dweight);
  sizes.sums_rows = dweight.db != nullptr;
  return sizes;
}

DweightPlan PlanTile(const DweightSizes& sizes, int tile) {
  const DweightTileSize& size = kDweightTiles[tile];
  DweightPlan plan;
  plan.sizes = sizes;
  if (size.has_strips() && size.taps != sizes.strip_taps) return plan;
  if (sizes.gathers && !CanGather(size)) return plan;
  plan.boxes = size.has_strips() ? sizes.strips : sizes.boxes;
  plan.steps = size.has_strips() ? sizes.strip_steps : sizes.steps;
  plan.row_tiles = CeilDiv(plan.boxes, size.row_boxes());
  plan.column_tiles = CeilDiv(sizes.columns, size.columns);
  const int64_t tiles = sizes.lists * plan.row_tiles * plan.column_tiles;
  // Each block and each tile may bring a part, and its sums for db.
  const int64_t part = size.elements() + (sizes.sums_rows ? 0 : kBiasSums);
  const int64_t sums_of_rows = RowTeams(size, sizes.gathers) * CeilDiv(sizes.columns, kBiasSums) * kBiasSums;
  const int64_t row_sums = sizes.sums_rows ? sums_of_rows : 0;
  const int64_t room = sizes.partial_elements - tiles * part - (sizes.groups.results - 1) * row_sums;
  const int64_t length = tiles * plan.steps;
  plan.blocks = std::min({int64_t{sizes.multiprocessors}, room / (part + row_sums), length});
  if (plan.blocks < 1) return plan;
  plan.tile = tile;

  // Fitted to the times of tests/gpu/hopper/check_dweight.cu on an H200, by which the tile of least estimated time
  // takes 0.4 % longer than the fastest on average.
  constexpr double kFill = 40;        // bytes a cycle from L2 to shared memory
  constexpr double kShared = 120;     // bytes a cycle that shared memory gives or takes
  constexpr double kStart = 20;       // of a step
  constexpr double kProduct = 1.25;   // of the tensor cores' peak
  constexpr double kReduction = 1.2;  // of a part written and read again
  // Where rows are gathered:
  constexpr double kMissCost = 2.5;     // of g's boxes, where L2 does not hold the operands
  constexpr double kGatherTime = 1000;  // until the rows of a box are there
  constexpr int kRing = 212 * 1024;     // bytes of all stages
  const double row_boxes = double(plan.boxes) / double(plan.row_tiles);
  const double column_boxes = double(CeilDiv(sizes.columns, kBox)) / double(plan.column_tiles);
  const double row_box_bytes = double(size.has_strips() ? sizes.strip_lines * kLineBytes : kBoxBytes);
  const double row_bytes = row_boxes * row_box_bytes, column_bytes = column_boxes * kBoxBytes;
  const double column_cost = sizes.exceeds_l2 ? kMissCost : 1;
  double fill = (row_bytes * sizes.box_cost + column_bytes * column_cost) / kFill;
  if (sizes.gathers) {
    // Two stages are with the products; the others wait for rows.
    const int stages = kRing / ((size.row_boxes() + size.columns / kBox) * kBoxBytes);
    fill = std::max(fill, kGatherTime * row_boxes / (stages - 2));
  }
  const double products = size.row_boxes() * size.taps * size.columns * (kStep / 32.0) * kProduct;
  // Products of 64 rows read these and all of their columns.
  const double reads = size.row_boxes() * (kBoxBytes + size.width() * kStep * 2.0) / kShared;
  const double step = std::max({fill, products, reads + (row_bytes + column_bytes) / kShared}) + kStart;
  const double steps = double(CeilDiv(length, plan.blocks));
  const double tile_bytes = double(size.elements()) * 4;
  const double chains = std::max(1.0, std::min(steps, double(plan.steps)) * kStep / double(sizes.chain));
  const double stores = std::max(1.0, steps / double(plan.steps)) * (2 * chains - 1) * tile_bytes / kFill;
  const double sums = kReduction * double(plan.blocks + tiles) * tile_bytes / (kFill * sizes.multiprocessors);
  plan.cycles = steps * step + stores + sums;
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

bool IsInReach(const Dweight&, const gpu::NeighborTable& table) {
  return table.sources > 0 && table.outputs > 0 && table.neighbours > 0;
}
bool IsInReach(const Dweight& dweight, const ColumnTaps& taps) {
  DweightGroups groups;
  if (!IsInReach(dweight, taps.table) || !FindGroups(dweight, taps.index_groups, &groups)) return false;
  if (!Gathers(dweight)) return true;
  if (groups.count() > 1 && !groups.own_g) return false;
  // Rows of x that are gathered have numbers over all groups and batch entries; over groups, so have rows of tables and
  // slots of dw.
  const int64_t x_rows = dweight.batch * taps.table.sources;
  const int64_t most = std::max({x_rows, int64_t{taps.table.outputs}, int64_t{dweight.slots}});
  return groups.count() * most <= INT32_MAX && HasShortNumbers(GatheredPositions(dweight, taps));
}
bool IsInReach(const Dweight& dweight, const SlotTaps& taps) {
  return !HasGroups(dweight) && IsInReach(dweight, taps.table);
}

// Whether the schedule's line has 31 bits however dw is tiled, and whichever slot has the taps.
bool HasShortLine(const Dweight& dweight, const DweightSizes& sizes) {
  const double row_boxes = double(sizes.lists) * double(sizes.boxes);
  const double steps = row_boxes * double(sizes.steps + StepsOfRow(dweight));
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

bool Pays(const Dweight& dweight, const ColumnTaps&) {
  return Gathers(dweight) ? PaysToGather(dweight) : IsWide(dweight);
}

bool Pays(const Dweight& dweight, const SlotTaps&) {
  constexpr int64_t kLeastBatch = 32;  // fewer batch entries leave too much of a step empty
  return IsWide(dweight) && dweight.batch >= kLeastBatch;
}

template <typename Taps>
bool Choose(const Dweight& dweight, const Taps& taps, const gpu::Device& device, bool forced, DweightPlan* plan) {
  if (!IsHopper(device) || !Fits(dweight) || !IsInReach(dweight, taps)) return false;
  if (!forced && !Pays(dweight, taps)) return false;
  *plan = Plan(dweight, taps, device, -1);
  return plan->tile >= 0 && HasShortLine(dweight, plan->sizes);
}

}  // namespace

int32_t ChannelBoxes(const Dweight& dweight) { return static_cast<int32_t>(CeilDiv(dweight.channels, kBox)); }

int64_t StepsOfRow(const Dweight& dweight) { return CeilDiv(dweight.batch, kStep); }

int64_t Positions(const Dweight& dweight, const DenseTaps& taps, int32_t pitch) {
  return dweight.batch * taps.out_size[0] * pitch;
}

Corners CornersOf(const DenseTaps& taps, int dimension) {
  const int lower = -taps.padding[dimension];
  return {lower, (taps.out_size[dimension] - 1) * taps.stride[dimension] + lower - (taps.in_size[dimension] - 1)};
}

DweightPlan PlanDweight(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device, int tile) {
  return Plan(dweight, taps, device, tile);
}
DweightPlan PlanDweight(const Dweight& dweight, const ColumnTaps& taps, const gpu::Device& device, int tile) {
  return Plan(dweight, taps, device, tile);
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
  return Choose(dweight, taps, device, forced, plan);
}
bool ChooseDweight(const Dweight& dweight, const SlotTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan) {
  return Choose(dweight, taps, device, forced, plan);
}

}  // namespace knnconv::hopper
