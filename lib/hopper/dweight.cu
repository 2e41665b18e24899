#include "hopper/dweight.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/device.h"
#include "hopper/device.h"
#include "hopper/dweight_choice.h"
#include "hopper/dweight_launch.h"
#include "hopper/dweight_reduce.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

using gpu::Dweight, gpu::DenseTaps, gpu::ColumnTaps, gpu::SlotTaps, gpu::IsAligned, gpu::LaunchSite, gpu::Status;

constexpr int kLeastWidth = 48;      // channels or columns; fewer leave too much of a box empty
constexpr int64_t kLeastBatch = 32;  // of a table, likewise

int32_t ChannelBoxes(const Dweight& dweight) { return static_cast<int32_t>(CeilDiv(dweight.channels, kBox)); }

int64_t StepsOfRow(const Dweight& dweight) { return CeilDiv(dweight.batch, kStep); }

int64_t Positions(const Dweight& dweight, const DenseTaps& taps) {
  return dweight.batch * taps.out_size[0] * taps.out_size[1];
}

DweightSizes SizesOf(const Dweight& dweight, const DenseTaps& taps) {
  return {1, int64_t{dweight.slots} * ChannelBoxes(dweight), CeilDiv(Positions(dweight, taps), kStep)};
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
    map.lower[d] = -taps.padding[from];
    map.upper[d] = (taps.out_size[from] - 1) * taps.stride[from] - taps.padding[from] - (taps.in_size[from] - 1);
    map.step[d] = taps.stride[from];
  }
  map.pixels = kStep;
  return map;
}

bool IsInReach(const Dweight& dweight, const DenseTaps& taps) {
  constexpr int kLeast = -128, kMost = 127, kMostStride = 8, kMostOffset = 255;  // of the copy engine
  const int32_t kernel[2] = {dweight.slots / taps.kernel_width, taps.kernel_width};
  const PixelMap map = PixelsOf(dweight, taps);
  for (int d = 0; d < 2; ++d) {
    if (taps.in_size[d] == 0 || taps.out_size[d] == 0) return false;
    if (std::min(map.lower[d], map.upper[d]) < kLeast || std::max(map.lower[d], map.upper[d]) > kMost) return false;
    if (taps.stride[d] > kMostStride || int64_t{kernel[d] - 1} * taps.dilation[d] > kMostOffset) return false;
  }
  return Positions(dweight, taps) <= INT32_MAX - 2 * kStep;
}

bool IsInReach(const Dweight&, const gpu::NeighborTable& table) {
  return table.sources > 0 && table.outputs > 0 && table.neighbours > 0;
}
bool IsInReach(const Dweight& dweight, const ColumnTaps& taps) { return IsInReach(dweight, taps.table); }
bool IsInReach(const Dweight& dweight, const SlotTaps& taps) { return IsInReach(dweight, taps.table); }

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
                    IsAligned(dweight.dw) && IsAligned(dweight.db) &&
                    dweight.shapes.groups.count() == 1 && dweight.shapes.members.count() == 1;
  if (!IsHopper(device) || !exists || !fits || !IsInReach(dweight, taps)) return {};
  DweightSizes sizes;
  DweightPlan plan;
  MakePlan(device, dweight, taps, -1, &sizes, &plan);
  *takes = plan.tile >= 0 && HasShortLine(dweight, sizes);
  return {};
}

bool IsWide(const Dweight& dweight) { return dweight.channels >= kLeastWidth && dweight.columns >= kLeastWidth; }

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, int tile, const CUtensorMap& x,
           const CUtensorMap& g, DweightTask task) {
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  DweightSizes sizes;
  DweightPlan plan;
  MakePlan(device, dweight, taps, tile, &sizes, &plan);
  if (plan.tile < 0) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for the parts of every tile"};
  }
  DweightSchedule& schedule = task.schedule;
  schedule.lists = static_cast<int32_t>(sizes.lists);
  schedule.row_tiles = static_cast<int32_t>(plan.row_tiles);
  schedule.column_tiles = static_cast<int32_t>(plan.column_tiles);
  schedule.blocks = static_cast<int32_t>(plan.blocks);
  schedule.steps = static_cast<int32_t>(sizes.steps);
  task.boxes = static_cast<int32_t>(sizes.boxes);
  task.channel_boxes = ChannelBoxes(dweight);
  task.columns = dweight.columns;
  task.chain = static_cast<int32_t>(sizes.chain / kStep);
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

template <typename Taps>
Status RunTable(const LaunchSite& site, const Dweight& dweight, const Taps& taps, int tile, DweightTask task) {
  const gpu::NeighborTable& table = taps.table;
  CUtensorMap x, g;
  const gpu::Element type = dweight.g_type;
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(type, dweight.x, dweight.batch, table.sources, dweight.channels, &x));
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(type, dweight.g, dweight.batch, table.outputs, dweight.columns, &g));
  task.table = table;
  task.schedule.steps_of_row = static_cast<int32_t>(StepsOfRow(dweight));
  task.g_rows = dweight.batch * table.outputs;
  return Run(site, dweight, taps, tile, x, g, task);
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
  DweightTask task = {};
  task.kind = TapsKind::kColumns;
  return RunTable(site, dweight, taps, tile, task);
}

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, int tile) {
  DweightTask task = {};
  task.kind = TapsKind::kSlots;
  task.schedule.offsets = taps.offsets;
  task.rows = taps.rows;
  task.sources = taps.sources;
  return RunTable(site, dweight, taps, tile, task);
}

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, int tile) {
  DweightTask task = {};
  task.kind = TapsKind::kDense;
  task.dense = taps;
  task.schedule.steps_of_row = 1;
  CUtensorMap x, g;
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelsOf(dweight, taps), &x));
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(dweight.g_type, dweight.g, Positions(dweight, taps), dweight.columns, &g));
  return Run(site, dweight, taps, tile, x, g, task);
}

}  // namespace knnconv::hopper
