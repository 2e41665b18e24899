// Chooses a TapGemm's tile on Hopper by shape, makes its tensor maps, and launches it.
#include "hopper/tap_gemm.h"

#include <algorithm>
#include <atomic>

#include "gpu/device.h"
#include "hopper/pixel_classes.h"
#include "hopper/tap_launch.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

// Machine code of sm_90a runs on capability 9.0 alone. Asked of the runtime once a device.
gpu::Status IsHopper(int ordinal, bool* is) {
  constexpr int kDevices = 64;
  enum : int { kUnknown, kNo, kYes };
  static std::atomic<int> known[kDevices] = {};
  int answer = ordinal < kDevices ? known[ordinal].load(std::memory_order_relaxed) : kUnknown;
  if (answer == kUnknown) {
    int major = 0, minor = 0;
    KNNCONV_GPU_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
    KNNCONV_GPU_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
    answer = major == 9 && minor == 0 ? kYes : kNo;
    if (ordinal < kDevices) known[ordinal].store(answer, std::memory_order_relaxed);
  }
  *is = answer == kYes;
  return {};
}

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

gpu::Status MakePlan(const gpu::TapGemm& gemm, const TileForm& form, TapPlan* plan) {
  plan->gemm = gemm;
  plan->column_tiles = static_cast<int32_t>(CeilDiv(gemm.columns, form.columns));
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(WeightMap(gemm, form.columns), &plan->weight));
  if (form.source == Source::kRows) {
    plan->row_tiles = CeilDiv(gemm.batch * gemm.nodes, form.rows);
    plan->tiles = plan->row_tiles * plan->column_tiles;
    return {};
  }
  if (gemm.kind != gpu::Taps::kWindow) {
    const int64_t boxes = form.rows / kBoxRows, parts = CeilDiv(gemm.batch, kBoxRows);
    // A tile holds one node where nodes differ in their slots.
    const int64_t whole = gemm.kind == gpu::Taps::kColumns ? parts : CeilDiv(parts, boxes) * boxes;
    plan->parts = static_cast<int32_t>(whole);
    plan->row_tiles = CeilDiv(gemm.nodes * whole, boxes);
    plan->tiles = plan->row_tiles * plan->column_tiles;
    plan->sorts = gemm.kind == gpu::Taps::kSources && gemm.nodes <= kSortedNodes;
    return Encode(TableMap(gemm), &plan->source[0]);
  }
  const std::vector<PixelClass> classes = PixelClassesOf(gemm.window);
  for (size_t i = 0; i < classes.size(); ++i) {
    plan->classes[i] = classes[i];
    const int64_t pixels = gemm.batch * classes[i].size[0] * classes[i].size[1];
    plan->row_tiles = std::max(plan->row_tiles, CeilDiv(pixels, form.rows));
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelMapOf(gemm, classes[i], form.rows), &plan->source[i]));
  }
  plan->tiles = static_cast<int64_t>(classes.size()) * plan->row_tiles * plan->column_tiles;
  return {};
}

}  // namespace

gpu::Status Takes(int device, const gpu::TapGemm& gemm, bool* takes) {
  *takes = false;
  bool is_hopper = false;
  KNNCONV_GPU_RETURN_IF_ERROR(IsHopper(device, &is_hopper));
  if (!is_hopper || gemm.source_type != gemm.compute_type || gemm.groups.count() != 1) return {};
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

TileForm ChooseForm(const gpu::TapGemm& gemm) {
  constexpr int kLeastBatchOfBoxes = 64;
  TileForm form{Source::kBoxes, kBoxRows, 64};
  if (gemm.columns > 64) form.columns = 128;
  if (gemm.columns > 128) form.columns = gemm.columns <= 192 ? 192 : 256;
  if (gemm.kind != gpu::Taps::kWindow && gemm.batch < kLeastBatchOfBoxes) {
    form.source = Source::kRows;
    if (form.columns == 192) form.columns = 256;
    return form;
  }
  if (form.columns == 128 && gemm.batch * gemm.nodes >= 256) form.rows = 256;
  return form;
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
