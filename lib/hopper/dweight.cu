// Makes the tensor maps and the task of a weight gradient on Hopper, and launches it.
#include "hopper/dweight.h"

#include "hopper/dweight_launch.h"
#include "hopper/dweight_operands.h"
#include "hopper/dweight_reduce.h"

namespace knnconv::hopper {
namespace {

using gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps, gpu::LaunchSite, gpu::Status;

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

Status Prepare(const Dweight& dweight, const gpu::NeighborTable& table, DweightTask* task, DweightMaps* maps) {
  task->table = table;
  task->schedule.steps_of_row = static_cast<int32_t>(StepsOfRow(dweight));
  task->g_rows = dweight.batch * table.outputs;
  return EncodeOperands(dweight, table, maps);
}

Status Prepare(const Dweight& dweight, const ColumnTaps& taps, const DweightPlan& plan, DweightTask* task,
               DweightMaps* maps) {
  task->kind = plan.sizes.gathers ? TapsKind::kGathered : TapsKind::kColumns;
  if (!plan.sizes.gathers) return Prepare(dweight, taps.table, task, maps);
  task->table = taps.table;
  const DweightGroups& groups = plan.sizes.groups;
  task->schedule.steps_of_row = 1;
  task->x = dweight.x;
  task->channels = dweight.channels;
  task->groups.batch = gpu::Divisor(static_cast<uint32_t>(dweight.batch));
  task->groups.x_back = groups.own_x ? 0 : static_cast<int32_t>(dweight.batch);
  task->groups.table_rows = groups.own_table ? taps.table.outputs : 0;
  task->g_rows = groups.members * dweight.batch * taps.table.outputs;
  return EncodeGathered(dweight, groups, task->g_rows, maps);
}

Status Prepare(const Dweight& dweight, const SlotTaps& taps, const DweightPlan&, DweightTask* task,
               DweightMaps* maps) {
  task->kind = TapsKind::kSlots;
  task->schedule.offsets = taps.offsets;
  task->rows = taps.rows;
  task->sources = taps.sources;
  return Prepare(dweight, taps.table, task, maps);
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
  task.partials = dweight.partials;
  task.g = dweight.g;
  task.row_teams = RowTeams(size, plan.sizes.gathers);
  if (dweight.db != nullptr) task.bias_partials = dweight.partials + (plan.blocks + schedule.tiles()) * size.elements();
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
  return Run(site, dweight, taps, plan);
}
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, const DweightPlan& plan) {
  return Run(site, dweight, taps, plan);
}

}  // namespace knnconv::hopper
