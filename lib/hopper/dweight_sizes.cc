#include "hopper/dweight_sizes.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/dweight_strips.h"

namespace knnconv::hopper {

using gpu::CeilDiv, gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps, gpu::FindStep;

namespace {

bool FindCounts(const Dweight& dweight, DweightGroups* groups) {
  const int64_t results = dweight.shapes.groups.count(), members = dweight.shapes.members.count();
  if (results > INT32_MAX || members > INT32_MAX || results * members > INT32_MAX) return false;
  *groups = {};
  groups->results = static_cast<int32_t>(results);
  groups->members = static_cast<int32_t>(members);
  return true;
}

// Whether strips can serve a dense convolution that is in reach.
bool HasStrips(const Dweight& dweight, const DenseTaps& taps) {
  return !HasGroups(dweight) && AreStripsDense(taps) && StripUpper(taps) >= kLeastCorner &&
         std::max(StripUpper(taps), CotangentUpper(taps)) <= kMostCorner &&
         HasShortNumbers(Positions(dweight, taps, StripPitch(taps)));
}

constexpr int64_t kLeastBatchOfBoxes = 32;
constexpr double kGatherCost = 1.6;  // of a box whose lines threads copy

// Bytes of x and g, with so many rows for each batch entry, as if each group had its own.
double BytesOf(const Dweight& dweight, double x_rows, double g_rows) {
  const double groups = double(dweight.shapes.groups.count()) * double(dweight.shapes.members.count());
  return 2 * groups * double(dweight.batch) * (x_rows * dweight.channels + g_rows * dweight.columns);
}

// Rows of g follow each other, those of a result's members and then the next result's. Where each of these stands in x
// and in the table is free, but for steps from member to member.
bool FindGroups(const Dweight& dweight, const gpu::NeighborTable& rows, const gpu::GroupStrides& tables,
                DweightGroups* groups) {
  const auto& [results, members] = dweight.shapes;
  const int64_t x_entry = int64_t{rows.sources} * dweight.channels;
  const int64_t g_matrix = dweight.batch * rows.outputs * dweight.columns;
  int64_t x, table, g, g_of_result;
  if (!FindCounts(dweight, groups) || !FindStep(members, dweight.x_groups, &x) ||
      !FindStep(members, tables, &table) || !FindStep(members, dweight.g_groups, &g) ||
      !FindStep(results, dweight.g_groups, &g_of_result)) {
    return false;
  }
  groups->x_step = static_cast<int32_t>(x / x_entry);
  groups->table_step = static_cast<int32_t>(table / rows.neighbours);
  return (groups->members == 1 || g == g_matrix) && (groups->results == 1 || g_of_result == groups->members * g_matrix);
}

// Whether other parts of a table, of `entries` each where a matrix of the table has `matrix` elements, have the same
// groups as the table. Finds `entries` where it is 0.
bool HaveGroups(const gpu::GroupStrides& parts, const gpu::GroupStrides& tables, int rank, int64_t matrix,
                int64_t* entries) {
  for (int d = 0; d < rank; ++d) {
    const int64_t matrices = tables.step[d] / matrix;
    if (*entries == 0 && matrices > 0) *entries = parts.step[d] / matrices;
    if (parts.step[d] != matrices * *entries) return false;
  }
  return true;
}

}  // namespace

bool HasGroups(const Dweight& dweight) {
  return dweight.shapes.groups.count() != 1 || dweight.shapes.members.count() != 1;
}

// Each result has pixels of its own, in whole steps: the next one's would follow in the last.
bool FindGroups(const Dweight& dweight, const DenseTaps& taps, DweightGroups* groups) {
  int64_t x, g;
  if (!FindCounts(dweight, groups) || groups->members != 1) return false;
  const gpu::GroupShape& shape = dweight.shapes.groups;
  if (!FindStep(shape, dweight.x_groups, &x) || !FindStep(shape, dweight.g_groups, &g)) return false;
  groups->own_x = x > 0;
  groups->own_g = g > 0;
  const bool has_whole_steps = Positions(dweight, taps, taps.out_size[1]) % kStep == 0;
  return groups->results == 1 || ((!groups->own_x || has_whole_steps) &&
                                  groups->results * std::max(dweight.batch, int64_t{dweight.slots}) <= INT32_MAX);
}

bool FindGroups(const Dweight& dweight, const ColumnTaps& taps, DweightGroups* groups) {
  return FindGroups(dweight, taps.table, taps.index_groups, groups);
}

bool FindGroups(const Dweight& dweight, const SlotTaps& taps, DweightGroups* groups) {
  if (!FindGroups(dweight, taps.table, taps.index_groups, groups)) return false;
  const int rank = dweight.shapes.groups.rank;
  int64_t matrix = int64_t{taps.table.outputs} * taps.table.neighbours;
  int64_t offsets = 2 * (int64_t{taps.table.slot_count} + 1);
  const auto have_groups = [&](const gpu::GroupStrides& parts, int64_t* entries) {
    return HaveGroups(parts, taps.index_groups, rank, matrix, entries);
  };
  return have_groups(taps.slot_groups, &matrix) && have_groups(taps.offset_groups, &offsets) &&
         have_groups(taps.row_groups, &groups->order_entries) &&
         have_groups(taps.source_groups, &groups->order_entries);
}

DweightSizes SizesOf(const Dweight& dweight, const DenseTaps& taps) {
  constexpr double kPixelCost = 1.12, kStridedCost = 1.6;  // where steps skip pixels
  DweightSizes sizes;
  FindGroups(dweight, taps, &sizes.groups);
  sizes.lists = sizes.groups.results;
  sizes.bytes = BytesOf(dweight, double(taps.in_size[0]) * taps.in_size[1],
                        double(taps.out_size[0]) * taps.out_size[1]);
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

DweightSizes SizesOf(const Dweight& dweight, const ColumnTaps& taps) {
  DweightSizes sizes;
  FindGroups(dweight, taps, &sizes.groups);
  sizes.lists = sizes.groups.results;
  sizes.bytes = BytesOf(dweight, taps.table.sources, taps.table.outputs);
  sizes.boxes = int64_t{dweight.slots} * ChannelBoxes(dweight);
  sizes.steps = taps.table.outputs * StepsOfRow(dweight);
  if (Gathers(dweight, taps)) {
    sizes.gathers = true;
    sizes.steps = CeilDiv(GatheredPositions(dweight, taps), kStep);
    sizes.box_cost = kGatherCost;
    sizes.sums_rows = dweight.db != nullptr;
  }
  return sizes;
}

// As if all slots had equally many taps.
DweightSizes SizesOf(const Dweight& dweight, const SlotTaps& taps) {
  const int64_t all_taps = int64_t{taps.table.outputs} * taps.table.neighbours;
  DweightSizes sizes;
  FindGroups(dweight, taps, &sizes.groups);
  sizes.lists = int64_t{sizes.groups.results} * dweight.slots;
  sizes.bytes = BytesOf(dweight, taps.table.sources, taps.table.outputs);
  sizes.boxes = ChannelBoxes(dweight);
  sizes.steps = CeilDiv(all_taps, dweight.slots) * StepsOfRow(dweight);
  sizes.sums_rows = dweight.db != nullptr;
  sizes.has_slots = true;
  if (Gathers(dweight, taps)) {
    sizes.gathers = true;
    sizes.starts = 2 * (sizes.lists + 1) + sizes.lists * sizes.groups.members + 1;
    // Of each member, the last step is half full.
    const int64_t positions = sizes.groups.members * all_taps * dweight.batch;
    sizes.steps = CeilDiv(positions, int64_t{dweight.slots} * kStep) + sizes.groups.members / 2;
    sizes.box_cost = sizes.column_cost = kGatherCost;
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

// Boxes are of one group, and of the batch entries of one node, those that do not exist included.
bool Gathers(const Dweight& dweight, const ColumnTaps&) {
  if (dweight.batch < kLeastBatchOfBoxes || HasGroups(dweight)) return true;
  return 6 * dweight.batch < 5 * StepsOfRow(dweight) * kStep && PaysToGather(dweight);
}

bool Gathers(const Dweight& dweight, const SlotTaps&) {
  return dweight.batch < kLeastBatchOfBoxes || HasGroups(dweight);
}

int64_t GatheredPositions(const Dweight& dweight, const ColumnTaps& taps) {
  return dweight.shapes.members.count() * dweight.batch * taps.table.outputs;
}

int64_t GatheredPositions(const Dweight& dweight, const SlotTaps& taps) {
  const int64_t of_a_member = dweight.batch * taps.table.outputs * taps.table.neighbours;
  return dweight.shapes.members.count() * (of_a_member + kStep);
}

int32_t ChannelBoxes(const Dweight& dweight) { return static_cast<int32_t>(CeilDiv(dweight.channels, kBox)); }

int64_t StepsOfRow(const Dweight& dweight) { return CeilDiv(dweight.batch, kStep); }

int64_t Positions(const Dweight& dweight, const DenseTaps& taps, int32_t pitch) {
  return dweight.batch * taps.out_size[0] * pitch;
}

Corners CornersOf(const DenseTaps& taps, int dimension) {
  const int lower = -taps.padding[dimension];
  return {lower, (taps.out_size[dimension] - 1) * taps.stride[dimension] + lower - (taps.in_size[dimension] - 1)};
}

}  // namespace knnconv::hopper
