// Chooses a TapGemm's tile on Hopper by shape, makes its tensor maps, and launches it.
#include "hopper/tap_gemm.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/device.h"
#include "hopper/device.h"
#include "hopper/pixel_classes.h"
#include "hopper/tap_launch.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned;

BoxMap WeightMap(const gpu::TapGemm& gemm, int tile_columns) {
  const auto depth = static_cast<uint64_t>(gemm.depth), columns = static_cast<uint64_t>(gemm.columns);
  BoxMap map{gemm.compute_type, gemm.weight, 3, {columns, depth, static_cast<uint64_t>(gemm.slots)}, {}, {64, 64, 1}};
  if (gemm.transposed) {
    std::swap(map.size[0], map.size[1]);
    map.box[1] = static_cast<uint32_t>(tile_columns);
  }
  map.stride[0] = 2 * map.size[0];
  map.stride[1] = 2 * depth * columns;
  return map;
}

BoxMap TableMap(const gpu::TapGemm& gemm) {
  const auto depth = static_cast<uint64_t>(gemm.depth), rows = static_cast<uint64_t>(gemm.source_rows);
  return {gemm.source_type, gemm.source,         3, {depth, rows, static_cast<uint64_t>(gemm.batch)},
          {2 * depth, 2 * depth * rows}, {kStepDepth, 1, kBoxRows}};
}

std::vector<PixelClass> ClassesOf(const gpu::TapGemm& gemm) {
  return gemm.kind == gpu::Taps::kWindow ? PixelClassesOf(gemm.window) : std::vector<PixelClass>();
}

// Boxes of a node; whole tiles of them where nodes differ in their slots, since a tile has one slot at a time.
int32_t Parts(const gpu::TapGemm& gemm, const TileForm& form) {
  const int64_t boxes = form.rows / kBoxRows, parts = CeilDiv(gemm.batch, kBoxRows);
  return static_cast<int32_t>(gemm.kind == gpu::Taps::kColumns ? parts : CeilDiv(parts, boxes) * boxes);
}

// Whether rows can be gathered one by one: source rows have 31 bits, and lists are read 16 bytes at a time.
bool HasRows(const gpu::TapGemm& gemm) {
  if (gemm.kind == gpu::Taps::kWindow || gemm.batch * gemm.source_rows > INT32_MAX) return false;
  return IsAligned(gemm.table.sources) && IsAligned(gemm.table.slots);
}

// Boxes need rows that follow each other in the result, or in the batch of a node.
Stores StoresOf(const gpu::TapGemm& gemm, Source source) {
  const bool flat = gemm.batch * gemm.nodes <= INT32_MAX;
  if (gemm.kind == gpu::Taps::kWindow) {
    const bool one_class = !gemm.window.transposed || (gemm.window.stride[0] == 1 && gemm.window.stride[1] == 1);
    return one_class && flat ? Stores::kFlat : Stores::kRows;
  }
  if (source == Source::kBoxes) return Stores::kTable;
  // Hubs' rows are not written.
  return gemm.batch == 1 && flat && gemm.kind != gpu::Taps::kSources ? Stores::kFlat : Stores::kRows;
}

BoxMap OutMap(const gpu::TapGemm& gemm, Stores stores) {
  const auto columns = static_cast<uint64_t>(gemm.columns), batch = static_cast<uint64_t>(gemm.batch);
  const auto nodes = static_cast<uint64_t>(gemm.nodes), bytes = static_cast<uint64_t>(gpu::ElementBytes(gemm.out_type));
  const auto line = static_cast<uint32_t>(128 / bytes);
  if (stores == Stores::kFlat) {
    return {gemm.out_type, gemm.out, 2, {columns, batch * nodes}, {bytes * columns}, {line, kStoredRows}};
  }
  return {gemm.out_type, gemm.out, 3, {columns, nodes, batch}, {bytes * columns, bytes * columns * nodes},
          {line, 1, kStoredRows}};
}

// The tiles of a `gemm` in one form; `classes` are its pixels'.
int64_t RowTiles(const gpu::TapGemm& gemm, const TileForm& form, const std::vector<PixelClass>& classes) {
  if (form.source != Source::kBoxes) return CeilDiv(gemm.batch * gemm.nodes, form.rows);
  if (gemm.kind == gpu::Taps::kWindow) {
    int64_t most = 0;
    for (const PixelClass& pixels : classes) {
      most = std::max(most, CeilDiv(gemm.batch * pixels.size[0] * pixels.size[1], form.rows));
    }
    return most;
  }
  return CeilDiv(gemm.nodes * Parts(gemm, form), form.rows / kBoxRows);
}

gpu::Status MakePlan(const gpu::TapGemm& gemm, const TileForm& form, TapPlan* plan) {
  const std::vector<PixelClass> classes = ClassesOf(gemm);
  plan->gemm = gemm;
  plan->stores = StoresOf(gemm, form.source);
  plan->parts = Parts(gemm, form);
  plan->column_tiles = static_cast<int32_t>(CeilDiv(gemm.columns, form.columns));
  plan->row_tiles = RowTiles(gemm, form, classes);
  plan->tiles = std::max<int64_t>(classes.size(), 1) * plan->row_tiles * plan->column_tiles;
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(WeightMap(gemm, form.columns), &plan->weight));
  if (plan->stores != Stores::kRows) KNNCONV_GPU_RETURN_IF_ERROR(Encode(OutMap(gemm, plan->stores), &plan->out));
  for (size_t i = 0; i < classes.size(); ++i) {
    plan->classes[i] = classes[i];
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelMapOf(gemm, classes[i], form.rows), &plan->source[i]));
  }
  if (form.source != Source::kBoxes || gemm.kind == gpu::Taps::kWindow) return {};
  return Encode(TableMap(gemm), &plan->source[0]);
}

// What tiles cost, in microseconds of an H200: a step of the main loop, and a tile besides. Of two tiles, where two
// share a multiprocessor.
struct TileCost {
  double step, tile;
};

// Fitted to the times of tests/gpu/hopper/check.cu, by which the form of least estimated time takes 1.2 % longer than
// the fastest on average. Only their ratios matter. Pixels cost less than tables: neighbours' boxes overlap.
struct FormCost {
  TileForm form;
  TileCost table, pixels;
};
constexpr FormCost kBoxForms[] = {
    {{Source::kBoxes, 128, 64}, {0.52, 3.2}, {0.40, 2.5}},  {{Source::kBoxes, 256, 64}, {0.42, 5.1}, {0.35, 3.0}},
    {{Source::kBoxes, 128, 128}, {0.82, 3.1}, {0.67, 4.2}}, {{Source::kBoxes, 256, 128}, {0.64, 5.6}, {0.58, 4.4}},
    {{Source::kBoxes, 128, 192}, {0.64, 0.8}, {0.49, 3.5}}, {{Source::kBoxes, 128, 256}, {0.71, 3.3}, {0.56, 5.1}},
};

double Microseconds(const gpu::TapGemm& gemm, const FormCost& cost, const std::vector<PixelClass>& classes,
                    int64_t multiprocessors) {
  const int64_t class_count = std::max<int64_t>(static_cast<int64_t>(classes.size()), 1);
  const int64_t tiles = class_count * RowTiles(gemm, cost.form, classes) * CeilDiv(gemm.columns, cost.form.columns);
  const bool pairs = cost.form.rows == 128 && cost.form.columns <= 128;  // two on a multiprocessor
  const int64_t at_once = pairs ? 2 * multiprocessors : multiprocessors, left = tiles % at_once;
  constexpr double kAlone = 0.7;  // of a pair's time
  const double last_round = left == 0 ? 0.0 : pairs && left <= multiprocessors ? kAlone : 1.0;
  // Lists hold as many taps as there are slots, or so.
  const bool fixed = gemm.kind == gpu::Taps::kRows || gemm.kind == gpu::Taps::kColumns;
  const double taps = (fixed ? gemm.table.columns : gemm.slots) / static_cast<double>(class_count);
  const TileCost& of = gemm.kind == gpu::Taps::kWindow ? cost.pixels : cost.table;
  const double of_tile = taps * static_cast<double>(CeilDiv(gemm.depth, kStepDepth)) * of.step + of.tile;
  return (static_cast<double>(tiles / at_once) + last_round) * of_tile;
}

}  // namespace

gpu::Status Takes(int ordinal, const gpu::TapGemm& gemm, bool* takes) {
  *takes = false;
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(gpu::GetDevice(ordinal, &device));
  if (!IsHopper(device) || gemm.source_type != gemm.compute_type || gemm.groups.count() != 1) return {};
  if (gemm.out_type != gemm.compute_type && gemm.out_type != gpu::Element::kF32) return {};
  if (gemm.depth % 8 != 0 || gemm.columns % 8 != 0) return {};  // lines of multiples of 16 bytes
  if (!IsAligned(gemm.source) || !IsAligned(gemm.weight) || !IsAligned(gemm.out) || !IsAligned(gemm.bias)) return {};
  // Tensor maps have no empty dimensions.
  if (gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0) return {};
  if (gemm.source_rows == 0 || gemm.depth == 0 || gemm.slots == 0) return {};
  *takes = gemm.kind != gpu::Taps::kWindow || !PixelClassesOf(gemm.window).empty();
  return {};
}

bool Pays(const gpu::TapGemm& gemm) {
  constexpr int kLeastDepth = 48, kLeastColumns = 32;
  return gemm.depth >= kLeastDepth && gemm.columns >= kLeastColumns;
}

bool CanStay(const gpu::TapGemm& gemm) {
  return gemm.depth <= kStepDepth && gemm.columns <= 64 && gemm.slots <= kResidentSlots;
}

TileForm ChooseForm(const gpu::TapGemm& gemm, int multiprocessors) {
  // Boxes of a small batch are mostly empty. But rows of lists take as many products as the node has taps of a slot
  // that has the most.
  const bool lists = gemm.kind == gpu::Taps::kRows || gemm.kind == gpu::Taps::kSources;
  const int64_t least_batch_of_boxes = lists ? 10 : 64;
  if (HasRows(gemm) && gemm.batch < least_batch_of_boxes) {
    const Source source = gpu::HasCells(gemm) ? Source::kCells : Source::kRows;
    return {source, kBoxRows, gemm.columns <= 64 ? 64 : gemm.columns <= 128 ? 128 : 256};
  }
  if (CanStay(gemm)) return {Source::kBoxes, kBoxRows, 64, true};
  const std::vector<PixelClass> classes = ClassesOf(gemm);
  const FormCost* best = nullptr;
  double least = 0.0;
  for (const FormCost& cost : kBoxForms) {
    const double time = Microseconds(gemm, cost, classes, multiprocessors);
    if (best != nullptr && time >= least) continue;
    best = &cost;
    least = time;
  }
  return best->form;
}

gpu::Status RunTapGemm(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const TileForm& form) {
  gpu::Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(gpu::GetDevice(site.device, &device));
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  TapPlan plan{};
  if (!site.prepare) KNNCONV_GPU_RETURN_IF_ERROR(MakePlan(gemm, form, &plan));
  if (gemm.compute_type == gpu::Element::kF16) {
    return gemm.transposed ? LaunchTapPlan<gpu::Half, true>(site, plan, form, device.multiprocessors)
                           : LaunchTapPlan<gpu::Half, false>(site, plan, form, device.multiprocessors);
  }
  return gemm.transposed ? LaunchTapPlan<gpu::BFloat, true>(site, plan, form, device.multiprocessors)
                         : LaunchTapPlan<gpu::BFloat, false>(site, plan, form, device.multiprocessors);
}

}  // namespace knnconv::hopper
