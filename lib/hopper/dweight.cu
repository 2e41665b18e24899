// Makes the tensor maps and the task of a weight gradient on Hopper, and launches it.
#include "hopper/dweight.h"

#include "hopper/dweight_launch.h"
#include "hopper/dweight_operands.h"
#include "hopper/dweight_reduce.h"
#include "hopper/dweight_starts.h"
#include "hopper/sample_dweight.h"

namespace knnconv::hopper {
namespace {

using gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps, gpu::LaunchSite, gpu::Status;

gpu::GroupStrides InUnitsOf(int64_t elements, gpu::GroupStrides strides) {
  for (int64_t& step : strides.step) step /= elements;
  return strides;
}

// What a task has of the taps, and the operands' maps for a tile.
Status Prepare(const Dweight& dweight, const DenseTaps& taps, const DweightPlan& plan, DweightTask* task,
               DweightMaps* maps) {
  const bool has_strips = kDweightTiles[plan.tile].has_strips();
  task->kind = TapsKind::kDense;
  task->dense = taps;
  task->pitch = has_strips ? StripPitch(taps) : taps.out_size[1];
  task->schedule.steps_of_row = 1;
  task->own_images = plan.sizes.groups.own_x ? static_cast<int32_t>(dweight.batch) : 0;
  return EncodeOperands(dweight, taps, plan.sizes.groups, has_strips, maps);
}

// Of boxes of one node's batch entries.
Status PrepareBoxes(const Dweight& dweight, const gpu::NeighborTable& table, DweightTask* task, DweightMaps* maps) {
  task->schedule.steps_of_row = static_cast<int32_t>(StepsOfRow(dweight));
  task->g_rows = dweight.batch * table.outputs;
  return EncodeOperands(dweight, table, maps);
}

// Of rows one by one.
void PrepareRows(const Dweight& dweight, const gpu::NeighborTable& table, const gpu::GroupStrides& tables,
                 const DweightGroups& groups, DweightTask* task) {
  task->schedule.steps_of_row = 1;
  task->x = dweight.x;
  task->channels = dweight.channels;
  task->g_rows = groups.members * dweight.batch * table.outputs;
  GatherGroups& of = task->groups;
  of.members = groups.members;
  of.entries = static_cast<int32_t>(dweight.batch);
  of.by_entries = gpu::Divisor(static_cast<uint32_t>(dweight.batch));
  of.x_step = groups.x_step;
  of.x_gap = groups.x_step - of.entries;
  of.table_step = groups.table_step;
  of.results = dweight.shapes.groups;
  of.x = InUnitsOf(int64_t{table.sources} * dweight.channels, dweight.x_groups);
  of.table = InUnitsOf(table.neighbours, tables);
}

Status Prepare(const Dweight& dweight, const ColumnTaps& taps, const DweightPlan& plan, DweightTask* task,
               DweightMaps* maps) {
  task->kind = plan.sizes.gathers ? TapsKind::kGatheredColumns : TapsKind::kColumns;
  task->table = taps.table;
  if (!plan.sizes.gathers) return PrepareBoxes(dweight, taps.table, task, maps);
  PrepareRows(dweight, taps.table, taps.index_groups, plan.sizes.groups, task);
  return EncodeGathered(dweight, plan.sizes.groups, task->g_rows, maps);
}

Status Prepare(const Dweight& dweight, const SlotTaps& taps, const DweightPlan& plan, DweightTask* task,
               DweightMaps* maps) {
  task->kind = plan.sizes.gathers ? TapsKind::kGatheredSlots : TapsKind::kSlots;
  task->table = taps.table;
  task->rows = taps.rows;
  task->sources = taps.sources;
  if (!plan.sizes.gathers) {
    task->schedule.offsets = taps.offsets;
    return PrepareBoxes(dweight, taps.table, task, maps);
  }
  task->slot_offsets = taps.offsets;
  task->order_entries = plan.sizes.groups.order_entries;
  task->schedule.offsets = reinterpret_cast<const int32_t*>(dweight.partials);
  task->starts = task->schedule.offsets + 2 * (plan.sizes.lists + 1);
  PrepareRows(dweight, taps.table, taps.index_groups, plan.sizes.groups, task);
  *maps = {};
  return {};
}

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const DweightPlan& plan) {
  if (plan.tile < 0) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for the parts of every tile"};
  }
  const DweightTileSize& size = kDweightTiles[plan.tile];
  DweightTask task = {};
  DweightMaps maps;
  KNNCONV_GPU_RETURN_IF_ERROR(Prepare(dweight, taps, plan, &task, &maps));
  DweightSchedule& schedule = task.schedule;
  schedule.lists = static_cast<int32_t>(plan.sizes.lists);
  schedule.row_tiles = static_cast<int32_t>(plan.row_tiles);
  schedule.column_tiles = static_cast<int32_t>(plan.column_tiles);
  schedule.blocks = static_cast<int32_t>(plan.blocks);
  schedule.steps = static_cast<int32_t>(plan.steps);
  task.boxes = static_cast<int32_t>(plan.boxes);
  task.channel_boxes = ChannelBoxes(dweight);
  task.columns = dweight.columns;
  task.results = plan.sizes.groups.results;
  task.own_g = plan.sizes.groups.own_g;
  task.chain = static_cast<int32_t>(plan.sizes.chain / kStep);
  task.partials = dweight.partials + StartElements(plan.sizes);
  task.g = dweight.g;
  task.row_teams = RowTeams(size, plan.sizes.gathers);
  if (dweight.db != nullptr) task.bias_partials = task.partials + (plan.blocks + schedule.tiles()) * size.elements();
  if (task.kind == TapsKind::kGatheredSlots) KNNCONV_GPU_RETURN_IF_ERROR(RunDweightStarts(site, task));
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == gpu::Element::kF16
                                  ? LaunchDweight<gpu::Half>(site, plan.tile, maps.x, maps.g, task)
                                  : LaunchDweight<gpu::BFloat>(site, plan.tile, maps.x, maps.g, task));
  return RunDweightReduce(site, dweight, task, size);
}

}  // namespace

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const DweightPlan& plan) {
  return Run(site, dweight, taps, plan);
}
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const DweightPlan& plan) {
  if (plan.samples.blocks > 0) return RunSampleDweight(site, dweight, taps, plan.samples);
  return Run(site, dweight, taps, plan);
}
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, const DweightPlan& plan) {
  return Run(site, dweight, taps, plan);
}

}  // namespace knnconv::hopper
