// Makes the tensor maps and the task of a weight gradient on Hopper, and launches it.
#include "hopper/dweight.h"

#include "hopper/dweight_launch.h"
#include "hopper/dweight_reduce.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

using gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps, gpu::LaunchSite, gpu::Status;

// Pixels of x as the taps of slot 0 visit them; other slots add their offsets.
PixelMap PixelsOf(const Dweight& dweight, const DenseTaps& taps) {
  PixelMap map = {};
  map.type = dweight.g_type;
  map.address = dweight.x;
  map.channels = dweight.channels;
  map.width = taps.in_size[1];
  map.height = taps.in_size[0];
  map.images = dweight.batch;
  for (int d = 0; d < 2; ++d) {
    const int from = 1 - d;  // the map has w first
    const Corners corners = CornersOf(taps, from);
    map.lower[d] = corners.lower;
    map.upper[d] = corners.upper;
    map.step[d] = taps.stride[from];
  }
  map.pixels = kStep;
  return map;
}

Status Run(const LaunchSite& site, const Dweight& dweight, const DweightPlan& plan, const CUtensorMap& x,
           const CUtensorMap& g, DweightTask task) {
  if (plan.tile < 0) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for the parts of every tile"};
  }
  DweightSchedule& schedule = task.schedule;
  schedule.lists = static_cast<int32_t>(plan.sizes.lists);
  schedule.row_tiles = static_cast<int32_t>(plan.row_tiles);
  schedule.column_tiles = static_cast<int32_t>(plan.column_tiles);
  schedule.blocks = static_cast<int32_t>(plan.blocks);
  schedule.steps = static_cast<int32_t>(plan.sizes.steps);
  task.boxes = static_cast<int32_t>(plan.sizes.boxes);
  task.channel_boxes = ChannelBoxes(dweight);
  task.columns = dweight.columns;
  task.chain = static_cast<int32_t>(plan.sizes.chain / kStep);
  task.partials = dweight.partials;
  task.g = dweight.g;
  const DweightTileSize& size = kDweightTiles[plan.tile];
  if (dweight.db != nullptr) task.bias_partials = dweight.partials + (plan.blocks + schedule.tiles()) * size.elements();
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == gpu::Element::kF16
                                  ? LaunchDweight<gpu::Half>(site, plan.tile, x, g, task)
                                  : LaunchDweight<gpu::BFloat>(site, plan.tile, x, g, task));
  return RunDweightReduce(site, dweight, task, size);
}

// Boxes of kStep batch entries of one row of [batch, rows, width].
Status EncodeRows(gpu::Element type, const void* address, int64_t batch, int64_t rows, int64_t width,
                  CUtensorMap* map) {
  BoxMap spec = {type, address, 3, {}, {}, {kBox, 1, kStep}};
  spec.size[0] = static_cast<uint64_t>(width);
  spec.size[1] = static_cast<uint64_t>(rows);
  spec.size[2] = static_cast<uint64_t>(batch);
  spec.stride[0] = 2 * spec.size[0];
  spec.stride[1] = spec.stride[0] * spec.size[1];
  return Encode(spec, map);
}

// Boxes of kStep rows of [rows, width].
Status EncodeRows(gpu::Element type, const void* address, int64_t rows, int64_t width, CUtensorMap* map) {
  BoxMap spec = {type, address, 2, {}, {}, {kBox, kStep}};
  spec.size[0] = static_cast<uint64_t>(width);
  spec.size[1] = static_cast<uint64_t>(rows);
  spec.stride[0] = 2 * spec.size[0];
  return Encode(spec, map);
}

Status RunTable(const LaunchSite& site, const Dweight& dweight, const gpu::NeighborTable& table, const DweightPlan& plan,
                DweightTask task) {
  CUtensorMap x, g;
  const gpu::Element type = dweight.g_type;
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(type, dweight.x, dweight.batch, table.sources, dweight.channels, &x));
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(type, dweight.g, dweight.batch, table.outputs, dweight.columns, &g));
  task.table = table;
  task.schedule.steps_of_row = static_cast<int32_t>(StepsOfRow(dweight));
  task.g_rows = dweight.batch * table.outputs;
  return Run(site, dweight, plan, x, g, task);
}

}  // namespace

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const DweightPlan& plan) {
  DweightTask task = {};
  task.kind = TapsKind::kColumns;
  return RunTable(site, dweight, taps.table, plan, task);
}

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, const DweightPlan& plan) {
  DweightTask task = {};
  task.kind = TapsKind::kSlots;
  task.schedule.offsets = taps.offsets;
  task.rows = taps.rows;
  task.sources = taps.sources;
  return RunTable(site, dweight, taps.table, plan, task);
}

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const DweightPlan& plan) {
  DweightTask task = {};
  task.kind = TapsKind::kDense;
  task.dense = taps;
  task.schedule.steps_of_row = 1;
  CUtensorMap x, g;
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelsOf(dweight, taps), &x));
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(dweight.g_type, dweight.g, Positions(dweight, taps), dweight.columns, &g));
  return Run(site, dweight, plan, x, g, task);
}

}  // namespace knnconv::hopper
