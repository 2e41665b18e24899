#include "hopper/dweight.h"

#include <algorithm>

#include "gpu/device.h"
#include "hopper/dweight_launch.h"
#include "hopper/dweight_reduce.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

constexpr int kLeastWidth = 48;   // channels or columns; fewer leave too much of a box empty
constexpr int64_t kLeastBatch = 24;
constexpr double kMostPositions = INT32_MAX - 2 * kStep;  // coordinates have 32 bits

int32_t ChannelBoxes(const gpu::Dweight& dweight) { return static_cast<int32_t>(CeilDivide(dweight.channels, kBox)); }

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// What all kinds of taps ask of the operands.
bool TakesOperands(const gpu::Dweight& dweight) {
  return dweight.x_type == dweight.g_type && dweight.channels % 8 == 0 && dweight.columns % 8 == 0 &&
         dweight.channels >= kLeastWidth && dweight.columns >= kLeastWidth && dweight.slots > 0 && dweight.batch > 0 &&
         IsAligned(dweight.x) && IsAligned(dweight.g) && IsAligned(dweight.partials) &&
         dweight.shapes.groups.count() == 1 && dweight.shapes.members.count() == 1;
}

// Whether the schedule's line has 31 bits however dw is tiled. `steps`: of all slots together; `bias_steps`: of g's rows.
bool HasShortLine(const gpu::Dweight& dweight, double steps, double bias_steps) {
  const int64_t column_boxes = CeilDivide(dweight.columns, kBox);
  return (steps * ChannelBoxes(dweight) + bias_steps) * column_boxes < INT32_MAX;
}

bool TakesTable(const gpu::Dweight& dweight, const gpu::NeighborTable& table) {
  if (table.sources == 0 || table.outputs == 0 || table.neighbours == 0) return false;
  const double rows = double(table.outputs) * CeilDivide(dweight.batch, kStep);
  return TakesOperands(dweight) && dweight.batch >= kLeastBatch && HasShortLine(dweight, rows * table.neighbours, rows);
}

// What tiles and cuts follow from.
struct DweightSizes {
  int64_t lists, boxes, steps;  // boxes of a list, steps of one of its tiles (at most)
  int64_t columns, bias_steps;
  int64_t partial_elements;
  int multiprocessors;
};

struct DweightPlan {
  int tile = -1;  // none has room
  int64_t blocks = 0, row_tiles = 0, column_tiles = 0;
  double cycles = 0;
};

// Cycles of a multiprocessor, estimated. Only ratios matter.
DweightPlan PlanTile(const DweightSizes& sizes, int tile) {
  const DweightTileSize& size = kDweightTiles[tile];
  DweightPlan plan;
  plan.row_tiles = CeilDivide(sizes.boxes, size.row_boxes());
  plan.column_tiles = CeilDivide(sizes.columns, size.columns);
  const int64_t tiles = sizes.lists * plan.row_tiles * plan.column_tiles;
  const int64_t parts = sizes.partial_elements / (size.elements() + kBiasSums);
  const int64_t bias_tiles = sizes.bias_steps > 0 ? plan.column_tiles : 0;
  const int64_t length = tiles * sizes.steps;
  plan.blocks = std::min({int64_t{sizes.multiprocessors}, parts - tiles - bias_tiles, length});
  if (plan.blocks < 1) return plan;
  plan.tile = tile;

  constexpr double kFill = 36;     // bytes a cycle from L2 to shared memory
  constexpr double kShared = 128;  // bytes a cycle that shared memory gives or takes
  constexpr double kStart = 30;    // of a step
  const double row_boxes = double(sizes.boxes) / double(plan.row_tiles);
  const double column_boxes = double(CeilDivide(sizes.columns, kBox)) / double(plan.column_tiles);
  const double bytes = (row_boxes + column_boxes) * kBoxBytes;
  const double products = size.row_boxes() * size.columns * 1.15;  // 64 * columns * 16 in columns / 2 cycles
  const double reads = size.row_boxes() * (kBoxBytes + size.columns * kStep * 2.0) / kShared;
  const double step = std::max({bytes / kFill, products, reads + bytes / kShared}) + kStart;
  const double steps = double(CeilDivide(length, plan.blocks));
  const double tile_bytes = double(size.elements()) * 4;
  const double chains = std::max(1.0, std::min(steps, double(sizes.steps)) * kStep / gpu::kChainPositions);
  const double stores = std::max(1.0, steps / double(sizes.steps)) * (2 * chains - 1) * tile_bytes / kFill;
  const double sums = double(plan.blocks + tiles) * tile_bytes / (kFill * sizes.multiprocessors);
  plan.cycles = steps * step + stores + sums;
  return plan;
}

DweightPlan ChoosePlan(const DweightSizes& sizes, int forced) {
  if (forced >= 0) return PlanTile(sizes, forced);
  DweightPlan best;
  for (int tile = 0; tile < static_cast<int>(sizeof(kDweightTiles) / sizeof(kDweightTiles[0])); ++tile) {
    const DweightPlan plan = PlanTile(sizes, tile);
    if (plan.tile >= 0 && (best.tile < 0 || plan.cycles < best.cycles)) best = plan;
  }
  return best;
}

gpu::Status Run(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const DweightSizes& sizes, int forced,
                const CUtensorMap& x, const CUtensorMap& g, DweightTask task) {
  const DweightPlan plan = ChoosePlan(sizes, forced);
  if (plan.tile < 0) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for the parts of every tile"};
  }
  DweightSchedule& schedule = task.schedule;
  schedule.lists = static_cast<int32_t>(sizes.lists);
  schedule.row_tiles = static_cast<int32_t>(plan.row_tiles);
  schedule.column_tiles = static_cast<int32_t>(plan.column_tiles);
  schedule.blocks = static_cast<int32_t>(plan.blocks);
  schedule.steps = static_cast<int32_t>(sizes.steps);
  schedule.bias_steps = static_cast<int32_t>(sizes.bias_steps);
  task.boxes = static_cast<int32_t>(sizes.boxes);
  task.columns = dweight.columns;
  task.partials = dweight.partials;
  const DweightTileSize& tile = kDweightTiles[plan.tile];
  if (dweight.db != nullptr) task.bias_partials = dweight.partials + (plan.blocks + schedule.tiles()) * tile.elements();
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == gpu::Element::kF16 ? LaunchDweight<gpu::Half>(site, plan.tile, x, g, task)
                                                                   : LaunchDweight<gpu::BFloat>(site, plan.tile, x, g, task));
  return RunDweightReduce(site, dweight, task, tile);
}

DweightSizes SizesOf(const gpu::Dweight& dweight, const gpu::Device& device) {
  DweightSizes sizes = {};
  sizes.columns = dweight.columns;
  sizes.partial_elements = dweight.partial_elements;
  sizes.multiprocessors = device.multiprocessors;
  return sizes;
}

// Boxes of kStep batch entries of one row of [batch, rows, width].
gpu::Status EncodeRows(gpu::Element type, const void* address, int64_t batch, int64_t rows, int64_t width,
                       CUtensorMap* map) {
  BoxMap spec = {type, address, 3, {}, {}, {kBox, 1, kStep}};
  spec.size[0] = static_cast<uint64_t>(width);
  spec.size[1] = static_cast<uint64_t>(rows);
  spec.size[2] = static_cast<uint64_t>(batch);
  spec.stride[0] = 2 * spec.size[0];
  spec.stride[1] = spec.stride[0] * spec.size[1];
  return Encode(spec, map);
}

gpu::Status RunTable(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::NeighborTable& table,
                     DweightSizes sizes, DweightTask task, int tile) {
  CUtensorMap x, g;
  KNNCONV_GPU_RETURN_IF_ERROR(
      EncodeRows(dweight.g_type, dweight.x, dweight.batch, table.sources, dweight.channels, &x));
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(dweight.g_type, dweight.g, dweight.batch, table.outputs, dweight.columns, &g));
  task.table = table;
  task.channel_boxes = ChannelBoxes(dweight);
  task.schedule.steps_of_row = static_cast<int32_t>(CeilDivide(dweight.batch, kStep));
  return Run(site, dweight, sizes, tile, x, g, task);
}

PixelMap PixelsOf(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  PixelMap map = {};
  map.type = dweight.g_type;
  map.address = dweight.x;
  map.channels = dweight.channels;
  map.width = taps.in_size[1];
  map.height = taps.in_size[0];
  map.images = dweight.batch;
  for (int d = 0; d < 2; ++d) {
    const int from = 1 - d;  // the map has w first
    map.lower[d] = -taps.padding[from];
    map.upper[d] = (taps.out_size[from] - 1) * taps.stride[from] - taps.padding[from] - (taps.in_size[from] - 1);
    map.step[d] = taps.stride[from];
  }
  map.pixels = kStep;
  return map;
}

}  // namespace

bool TakesDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps) { return TakesTable(dweight, taps.table); }

bool TakesDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps) { return TakesTable(dweight, taps.table); }

bool TakesDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  if (!TakesOperands(dweight)) return false;
  for (int size : {taps.in_size[0], taps.in_size[1], taps.out_size[0], taps.out_size[1]}) {
    if (size == 0) return false;
  }
  const double positions = double(dweight.batch) * taps.out_size[0] * taps.out_size[1];
  if (positions > kMostPositions || !HasShortLine(dweight, positions / kStep * dweight.slots, 0)) return false;
  const int32_t kernel[2] = {dweight.slots / taps.kernel_width, taps.kernel_width};
  const PixelMap map = PixelsOf(dweight, taps);
  for (int d = 0; d < 2; ++d) {
    constexpr int kLeast = -128, kMost = 127, kMostStride = 8, kMostOffset = 255;
    if (std::min(map.lower[d], map.upper[d]) < kLeast || std::max(map.lower[d], map.upper[d]) > kMost) return false;
    if (taps.stride[d] > kMostStride || (kernel[d] - 1) * taps.dilation[d] > kMostOffset) return false;
  }
  return true;
}

gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, int tile) {
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  DweightSizes sizes = SizesOf(dweight, device);
  sizes.lists = 1;
  sizes.boxes = int64_t{dweight.slots} * ChannelBoxes(dweight);
  sizes.steps = taps.table.outputs * CeilDivide(dweight.batch, kStep);
  DweightTask task = {};
  task.kind = TapsKind::kColumns;
  return RunTable(site, dweight, taps.table, sizes, task, tile);
}

gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::SlotTaps& taps, int tile) {
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  DweightSizes sizes = SizesOf(dweight, device);
  sizes.lists = dweight.slots;
  sizes.boxes = ChannelBoxes(dweight);
  const int64_t steps_of_row = CeilDivide(dweight.batch, kStep);
  sizes.steps = CeilDivide(int64_t{taps.table.outputs} * taps.table.neighbours, dweight.slots) * steps_of_row;
  if (dweight.db != nullptr) sizes.bias_steps = taps.table.outputs * steps_of_row;
  DweightTask task = {};
  task.kind = TapsKind::kSlots;
  task.schedule.offsets = taps.offsets;
  task.rows = taps.rows;
  task.sources = taps.sources;
  return RunTable(site, dweight, taps.table, sizes, task, tile);
}

gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::DenseTaps& taps, int tile) {
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  const int64_t positions = dweight.batch * taps.out_size[0] * taps.out_size[1];
  DweightSizes sizes = SizesOf(dweight, device);
  sizes.lists = 1;
  sizes.boxes = int64_t{dweight.slots} * ChannelBoxes(dweight);
  sizes.steps = CeilDivide(positions, kStep);
  DweightTask task = {};
  task.kind = TapsKind::kDense;
  task.dense = taps;
  task.channel_boxes = ChannelBoxes(dweight);
  task.schedule.steps_of_row = 1;
  CUtensorMap x, g;
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelsOf(dweight, taps), &x));
  BoxMap spec = {dweight.g_type, dweight.g, 2, {}, {}, {kBox, kStep}};
  spec.size[0] = static_cast<uint64_t>(dweight.columns);
  spec.size[1] = static_cast<uint64_t>(positions);
  spec.stride[0] = 2 * spec.size[0];
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(spec, &g));
  return Run(site, dweight, sizes, tile, x, g, task);
}

}  // namespace knnconv::hopper
