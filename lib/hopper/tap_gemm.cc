// Makes the tensor maps of a TapGemm on Hopper, and launches it.
#include "hopper/tap_gemm.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/sample.h"
#include "hopper/tap_launch.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv;

// Groups follow each other where each has matrices of its own.
uint64_t Matrices(const TapGroups& groups, bool own) { return own ? static_cast<uint64_t>(groups.count) : 1; }

BoxMap WeightMap(const gpu::TapGemm& gemm, const TapGroups& groups, int tile_columns) {
  const auto depth = static_cast<uint64_t>(gemm.depth), columns = static_cast<uint64_t>(gemm.columns);
  const uint64_t slots = Matrices(groups, groups.slots > 0) * static_cast<uint64_t>(gemm.slots);
  BoxMap map{gemm.compute_type, gemm.weight, 3, {columns, depth, slots}, {}, {64, 64, 1}};
  if (gemm.transposed) {
    std::swap(map.size[0], map.size[1]);
    map.box[1] = static_cast<uint32_t>(tile_columns);
  }
  map.stride[0] = 2 * map.size[0];
  map.stride[1] = 2 * depth * columns;
  return map;
}

BoxMap TableMap(const gpu::TapGemm& gemm, const TapGroups& groups, int32_t box_rows) {
  const auto depth = static_cast<uint64_t>(gemm.depth), rows = static_cast<uint64_t>(gemm.source_rows);
  const auto batch = static_cast<uint64_t>(gemm.batch);
  const bool own = groups.source_rows > 0;
  return {gemm.source_type,
          gemm.source,
          own ? 4 : 3,
          {depth, rows, batch, Matrices(groups, own)},
          {2 * depth, 2 * depth * rows, 2 * depth * rows * batch},
          {kStepDepth, 1, static_cast<uint32_t>(box_rows), 1}};
}

// The source of a kWindow `gemm`, for the pixels of a class; a copy takes `count` of them.
PixelMap PixelMapOf(const gpu::TapGemm& gemm, const PixelClass& pixels, int64_t images, int count) {
  const gpu::WindowTaps& window = gemm.window;
  PixelMap map{gemm.source_type, gemm.source, gemm.depth, window.source_size[1], window.source_size[0], images,
               {}, {}, {}, count};
  for (int d = 0; d < 2; ++d) {
    map.lower[d] = pixels.corner[1 - d];
    map.upper[d] = UpperCorner(window, pixels, 1 - d);
    map.step[d] = PixelStep(window, 1 - d);
  }
  return map;
}

// Boxes need rows that follow each other in the result, or in the batch of a node, and behind the last of them there is
// nothing to write.
Stores StoresOf(const gpu::TapGemm& gemm, const TapForm& form) {
  if (TileGroups(form) > 1) return Stores::kRows;
  const Source source = form.tile.source;
  const bool flat = RowGroups(form) * gemm.batch * gemm.nodes <= INT32_MAX;
  if (gemm.kind == gpu::Taps::kWindow) {
    const bool one_class = !gemm.window.transposed || (gemm.window.stride[0] == 1 && gemm.window.stride[1] == 1);
    return one_class && flat ? Stores::kFlat : Stores::kRows;
  }
  if (source == Source::kBoxes) return Stores::kTable;
  // Hubs' rows are not written.
  return gemm.batch == 1 && flat && gemm.kind != gpu::Taps::kSources ? Stores::kFlat : Stores::kRows;
}

BoxMap OutMap(const gpu::TapGemm& gemm, const TapForm& form, Stores stores) {
  const TileForm& tile = form.tile;
  const bool together = StoresTogether(tile.source, tile.rows, tile.columns, tile.split);
  const auto stored_rows = static_cast<uint32_t>(together ? tile.rows / 2 : kStoredRows);  // by one of two warpgroups
  const auto columns = static_cast<uint64_t>(gemm.columns), batch = static_cast<uint64_t>(gemm.batch);
  const auto nodes = static_cast<uint64_t>(gemm.nodes), bytes = static_cast<uint64_t>(gpu::ElementBytes(gemm.out_type));
  const auto line = static_cast<uint32_t>(128 / bytes);
  if (stores == Stores::kFlat) {
    const uint64_t rows = static_cast<uint64_t>(RowGroups(form)) * batch * nodes;
    return {gemm.out_type, gemm.out, 2, {columns, rows}, {bytes * columns}, {line, stored_rows}};
  }
  return {gemm.out_type, gemm.out, 3, {columns, nodes, batch}, {bytes * columns, bytes * columns * nodes},
          {line, 1, stored_rows}};
}

gpu::Status MakePlan(const gpu::TapGemm& gemm, const TapForm& form, TapPlan* plan) {
  const TileForm& tile = form.tile;
  plan->gemm = gemm;
  plan->groups = form.groups;
  plan->row_groups = static_cast<int32_t>(RowGroups(form));
  plan->tile_groups = static_cast<int32_t>(TileGroups(form));
  plan->class_count = std::max<int32_t>(form.classes.count, 1);
  plan->stores = StoresOf(gemm, form);
  plan->by_parts = gpu::Divisor(static_cast<uint32_t>(Parts(gemm, tile)));
  // Rows behind the batch are not stored, whatever the stage holds there.
  plan->box_rows = static_cast<int32_t>(std::min<int64_t>(gemm.batch, kBoxRows));
  const int64_t column_tiles = CeilDiv(gemm.columns, tile.columns);
  const int64_t row_tiles = RowTiles(gemm, form);
  plan->tiles = int64_t{plan->tile_groups} * plan->class_count * row_tiles * column_tiles;
  if (plan->tiles > INT32_MAX) return {cudaErrorInvalidConfiguration, __FILE__, __LINE__, "tiles have 31 bits"};
  plan->by_row_tiles = gpu::Divisor(static_cast<uint32_t>(row_tiles));
  plan->by_column_tiles = gpu::Divisor(static_cast<uint32_t>(column_tiles));
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(WeightMap(gemm, form.groups, tile.columns), &plan->weight));
  if (plan->stores != Stores::kRows) KNNCONV_GPU_RETURN_IF_ERROR(Encode(OutMap(gemm, form, plan->stores), &plan->out));
  plan->images = gemm.batch * static_cast<int64_t>(Matrices(form.groups, form.groups.source_rows > 0));
  for (int i = 0; i < form.classes.count; ++i) {
    plan->classes[i] = form.classes.of[i];
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelMapOf(gemm, plan->classes[i], plan->images, tile.rows), &plan->source[i]));
  }
  if (tile.source != Source::kBoxes || gemm.kind == gpu::Taps::kWindow) return {};
  return Encode(TableMap(gemm, form.groups, plan->box_rows), &plan->source[0]);
}

}  // namespace

gpu::Status RunTapGemm(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device,
                       const TapForm& form) {
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  if (form.tile.source == Source::kSample) return RunSamples(site, gemm, device);
  TapPlan plan{};
  if (!site.prepare) KNNCONV_GPU_RETURN_IF_ERROR(MakePlan(gemm, form, &plan));
  if (gemm.compute_type == gpu::Element::kF16) {
    return gemm.transposed ? LaunchTapPlan<gpu::Half, true>(site, plan, form.tile, device.multiprocessors)
                           : LaunchTapPlan<gpu::Half, false>(site, plan, form.tile, device.multiprocessors);
  }
  return gemm.transposed ? LaunchTapPlan<gpu::BFloat, true>(site, plan, form.tile, device.multiprocessors)
                         : LaunchTapPlan<gpu::BFloat, false>(site, plan, form.tile, device.multiprocessors);
}

}  // namespace knnconv::hopper
