// Makes the tensor maps and the task of a weight gradient of samples in shared memory, and launches it.
#include "hopper/sample_dweight.h"

#include "hopper/dweight_chain.h"
#include "hopper/dweight_reduce.h"
#include "hopper/dweight_sizes.h"
#include "hopper/sample_dweight_launch.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

// Boxes of 64 rows of a sample.
BoxMap RowsOf(gpu::Element type, const void* rows, int64_t count, int64_t width, int64_t samples) {
  const auto line = static_cast<uint64_t>(2 * width), all = static_cast<uint64_t>(count);
  return {type, rows, 3, {static_cast<uint64_t>(width), all, static_cast<uint64_t>(samples)}, {line, line * all},
          {kBox, kStep, 1}};
}

}  // namespace

gpu::Status RunSampleDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps,
                             const SampleDweightCut& cut) {
  const gpu::NeighborTable& table = taps.table;
  CUtensorMap x, g;
  KNNCONV_GPU_RETURN_IF_ERROR(
      Encode(RowsOf(dweight.x_type, dweight.x, table.sources, dweight.channels, dweight.batch), &x));
  KNNCONV_GPU_RETURN_IF_ERROR(
      Encode(RowsOf(dweight.g_type, dweight.g, table.outputs, dweight.columns, dweight.batch), &g));
  // What the second kernel has to know of parts: each block left one, as if its boxes were one step.
  DweightTask sums = {};
  sums.kind = TapsKind::kGatheredColumns;
  sums.schedule.lists = sums.schedule.column_tiles = sums.schedule.steps_of_row = 1;
  sums.schedule.row_tiles = cut.tiles;
  sums.schedule.blocks = cut.blocks;
  sums.schedule.steps = cut.ways;
  sums.boxes = dweight.slots;
  sums.channel_boxes = 1;
  sums.columns = dweight.columns;
  sums.results = sums.row_teams = 1;
  sums.partials = dweight.partials;
  if (dweight.db != nullptr) sums.bias_partials = dweight.partials + (cut.blocks + cut.tiles) * kSampleTile.elements();
  SampleDweightTask task = {};
  task.table = table;
  task.columns = dweight.columns;
  task.ways = cut.ways;
  task.depth = static_cast<int32_t>(dweight.batch * cut.boxes);
  task.boxes = cut.boxes;
  task.chain = static_cast<int32_t>(ChainPositions(dweight.dw_type) / kStep);
  task.samples_held = cut.samples_held;
  task.stages = cut.stages;
  task.partials = sums.partials;
  task.bias_partials = sums.bias_partials;
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == gpu::Element::kF16
                                  ? LaunchSampleDweight<gpu::Half>(site, x, g, task, cut)
                                  : LaunchSampleDweight<gpu::BFloat>(site, x, g, task, cut));
  return RunDweightReduce(site, dweight, sums, kSampleTile);
}

}  // namespace knnconv::hopper
