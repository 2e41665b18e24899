#include "hopper/dweight.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/device.h"
#include "hopper/device.h"
#include "hopper/dweight_choice.h"
#include "hopper/dweight_launch.h"
#include "hopper/dweight_operands.h"
#include "hopper/dweight_reduce.h"

namespace knnconv::hopper {
namespace {

using gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps, gpu::IsAligned, gpu::LaunchSite, gpu::Status;

constexpr int kLeastWidth = 48;      // channels or columns; fewer leave too much of a box empty
constexpr int64_t kLeastBatch = 32;  // of a table, likewise

int32_t ChannelBoxes(const Dweight& dweight) { return static_cast<int32_t>(CeilDiv(dweight.channels, kBox)); }

int64_t StepsOfRow(const Dweight& dweight) { return CeilDiv(dweight.batch, kStep); }

DweightSizes SizesOf(const Dweight& dweight, const DenseTaps& taps) {
  DweightSizes sizes;
  sizes.lists = 1;
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
  return {1, int64_t{dweight.slots} * ChannelBoxes(dweight), taps.table.outputs * StepsOfRow(dweight)};
}

// As if all slots had equally many taps.
DweightSizes SizesOf(const Dweight& dweight, const SlotTaps& taps) {
  const int64_t rows = taps.table.outputs;
  DweightSizes sizes = {dweight.slots, ChannelBoxes(dweight),
                        CeilDiv(rows * taps.table.neighbours, dweight.slots) * StepsOfRow(dweight)};
  sizes.sums_rows = dweight.db != nullptr;
  return sizes;
}

template <typename Taps>
void MakePlan(const gpu::Device& device, const Dweight& dweight, const Taps& taps, int tile, DweightSizes* sizes,
              DweightPlan* plan) {
  *sizes = SizesOf(dweight, taps);
  sizes->columns = dweight.columns;
  sizes->partial_elements = dweight.partial_elements;
  sizes->chain = ChainPositions(dweight.dw_type);
  sizes->multiprocessors = device.multiprocessors;
  *plan = ChoosePlan(*sizes, tile);
}

// Whether the schedule's line has 31 bits however dw is tiled, and whichever slot has the taps.
bool HasShortLine(const Dweight& dweight, const DweightSizes& sizes) {
  const double row_boxes = double(sizes.lists) * double(sizes.boxes);
  const double steps = row_boxes * double(sizes.steps + StepsOfRow(dweight));
  return steps * double(CeilDiv(sizes.columns, kBox)) < INT32_MAX;
}

template <typename Taps>
Status Takes(int ordinal, const Dweight& dweight, const Taps& taps, bool* takes) {
  *takes = false;
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(ordinal, &device));
  const bool exists = dweight.slots > 0 && dweight.batch > 0 && dweight.channels > 0 && dweight.columns > 0;
  const bool fits = dweight.x_type == dweight.g_type && dweight.channels % 8 == 0 && dweight.columns % 8 == 0 &&
                    IsAligned(dweight.x) && IsAligned(dweight.g) && IsAligned(dweight.partials) &&
                    dweight.shapes.groups.count() == 1 && dweight.shapes.members.count() == 1;
  if (!IsHopper(device) || !exists || !fits || !IsInReach(dweight, taps)) return {};
  DweightSizes sizes;
  DweightPlan plan;
  MakePlan(device, dweight, taps, -1, &sizes, &plan);
  *takes = plan.tile >= 0 && HasShortLine(dweight, sizes);
  return {};
}

bool IsWide(const Dweight& dweight) { return dweight.channels >= kLeastWidth && dweight.columns >= kLeastWidth; }

// What a task has of the taps, and the operands' maps for a tile.
Status Prepare(const Dweight& dweight, const DenseTaps& taps, const DweightTileSize& size, DweightTask* task,
               DweightMaps* maps) {
  task->kind = TapsKind::kDense;
  task->dense = taps;
  task->pitch = size.has_strips() ? StripPitch(taps) : taps.out_size[1];
  task->schedule.steps_of_row = 1;
  return EncodeOperands(dweight, taps, size.has_strips(), maps);
}

Status Prepare(const Dweight& dweight, const gpu::NeighborTable& table, DweightTask* task, DweightMaps* maps) {
  task->table = table;
  task->schedule.steps_of_row = static_cast<int32_t>(StepsOfRow(dweight));
  task->g_rows = dweight.batch * table.outputs;
  return EncodeOperands(dweight, table, maps);
}

Status Prepare(const Dweight& dweight, const ColumnTaps& taps, const DweightTileSize&, DweightTask* task,
               DweightMaps* maps) {
  task->kind = TapsKind::kColumns;
  return Prepare(dweight, taps.table, task, maps);
}

Status Prepare(const Dweight& dweight, const SlotTaps& taps, const DweightTileSize&, DweightTask* task,
               DweightMaps* maps) {
  task->kind = TapsKind::kSlots;
  task->schedule.offsets = taps.offsets;
  task->rows = taps.rows;
  task->sources = taps.sources;
  return Prepare(dweight, taps.table, task, maps);
}

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, int tile) {
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  DweightSizes sizes;
  DweightPlan plan;
  MakePlan(device, dweight, taps, tile, &sizes, &plan);
  if (plan.tile < 0) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for the parts of every tile"};
  }
  const DweightTileSize& size = kDweightTiles[plan.tile];
  DweightTask task = {};
  DweightMaps maps;
  KNNCONV_GPU_RETURN_IF_ERROR(Prepare(dweight, taps, size, &task, &maps));
  DweightSchedule& schedule = task.schedule;
  schedule.lists = static_cast<int32_t>(sizes.lists);
  schedule.row_tiles = static_cast<int32_t>(plan.row_tiles);
  schedule.column_tiles = static_cast<int32_t>(plan.column_tiles);
  schedule.blocks = static_cast<int32_t>(plan.blocks);
  schedule.steps = static_cast<int32_t>(plan.steps);
  task.boxes = static_cast<int32_t>(plan.boxes);
  task.channel_boxes = ChannelBoxes(dweight);
  task.columns = dweight.columns;
  task.chain = static_cast<int32_t>(sizes.chain / kStep);
  task.partials = dweight.partials;
  task.g = dweight.g;
  if (dweight.db != nullptr) task.bias_partials = dweight.partials + (plan.blocks + schedule.tiles()) * size.elements();
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == gpu::Element::kF16
                                  ? LaunchDweight<gpu::Half>(site, plan.tile, maps.x, maps.g, task)
                                  : LaunchDweight<gpu::BFloat>(site, plan.tile, maps.x, maps.g, task));
  return RunDweightReduce(site, dweight, task, size);
}

}  // namespace

Status TakesDweight(int ordinal, const Dweight& dweight, const ColumnTaps& taps, bool* takes) {
  return Takes(ordinal, dweight, taps, takes);
}
Status TakesDweight(int ordinal, const Dweight& dweight, const SlotTaps& taps, bool* takes) {
  return Takes(ordinal, dweight, taps, takes);
}
Status TakesDweight(int ordinal, const Dweight& dweight, const DenseTaps& taps, bool* takes) {
  return Takes(ordinal, dweight, taps, takes);
}

bool PaysDweight(const Dweight& dweight, const ColumnTaps&) { return IsWide(dweight) && dweight.batch >= kLeastBatch; }
bool PaysDweight(const Dweight& dweight, const SlotTaps&) { return IsWide(dweight) && dweight.batch >= kLeastBatch; }
bool PaysDweight(const Dweight& dweight, const DenseTaps&) { return IsWide(dweight); }

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, int tile) {
  return Run(site, dweight, taps, tile);
}
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, int tile) {
  return Run(site, dweight, taps, tile);
}
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, int tile) {
  return Run(site, dweight, taps, tile);
}

}  // namespace knnconv::hopper
