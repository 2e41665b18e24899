#include "gpu/halo_dweight_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"

namespace knnconv::gpu {
namespace {

constexpr int kWarpsDown = 4;

int64_t RowUnits(const TapGemm& forward) { return CeilDiv(forward.slots * CeilDiv(forward.depth, kHaloChunk), 2); }

// The plan with tiles of at most `pixels`.
bool PlanPixels(const Dweight& dweight, const TapGemm& forward, const HaloDweightShape& shape, int pixels,
                int multiprocessors, int shared_limit, HaloDweightPlan* plan) {
  *plan = {};
  if (!PlanGeometry(forward, /*quads=*/false, kWarpsDown * 32 * shape.groups, pixels, plan)) return false;
  const int64_t row_tiles = CeilDiv(RowUnits(forward), kWarpsDown * shape.units);
  const int64_t column_tiles = CeilDiv(forward.columns, 32 * shape.groups);
  const int64_t tiles = forward.groups.count() * row_tiles * column_tiles;
  if (tiles > INT32_MAX) return false;
  plan->shape = shape;
  plan->row_tiles = static_cast<uint32_t>(row_tiles);
  plan->column_tiles = static_cast<uint32_t>(column_tiles);

  const auto rounded = [](int64_t bytes) { return static_cast<int32_t>(CeilDiv(bytes, 16) * 16); };
  plan->cotangent_pitch = 32 * shape.groups * 2 + 16;  // odd in units of 16 bytes: 8 pixels' chunks in different banks
  plan->slots_at = 16;                                 // after zeros
  plan->table_at = plan->slots_at + rounded(plan->taps * 4);
  plan->halo_at = plan->table_at + rounded(int64_t{plan->taps} * plan->chunks * 8);
  plan->raw_at = plan->halo_at + (plan->raw_bytes > 0 ? plan->halo_bytes : 0);
  plan->stage_at = plan->raw_at + plan->raw_bytes;
  plan->cotangent_bytes = pixels * plan->cotangent_pitch;
  plan->stage_bytes = plan->cotangent_bytes + (plan->raw_bytes > 0 ? 0 : plan->halo_bytes);
  const int64_t bytes = plan->stage_at + int64_t{2} * plan->stage_bytes;
  if (bytes > shared_limit) return false;
  plan->bytes = static_cast<int32_t>(bytes);
  plan->vector_cotangent = dweight.columns % kHaloChunk == 0 && IsAligned(dweight.g);
  plan->vector_partials = dweight.columns % 2 == 0 && IsAligned(dweight.partials, 8);

  // Slices fill the device once.
  const int resident = ResidentBlocks(plan->bytes, shared_limit, HaloDweightBlocks(shape.units, shape.groups));
  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  const int64_t slice = forward.groups.count() * (weight + (dweight.db != nullptr ? dweight.columns : 0));
  const int64_t room = dweight.partial_elements / std::max<int64_t>(slice, 1);
  const int64_t most = std::min<int64_t>({room, plan->all_tiles, multiprocessors * resident / tiles});
  if (room < 1) return false;
  plan->slices = static_cast<uint32_t>(std::max<int64_t>(1, most));
  const int64_t sums = forward.groups.count() * plan->slices;
  plan->bias_partials = dweight.db != nullptr ? dweight.partials + sums * weight : nullptr;
  return true;
}

HaloDweightShape ShapeOf(const TapGemm& forward) {
  const int64_t units = CeilDiv(RowUnits(forward), kWarpsDown);
  return {units <= 2 ? 2 : units <= 5 ? 5 : 7, forward.columns <= 32 ? 1 : 2};
}

}  // namespace

TapGemm ForwardOf(const Dweight& dweight, const DenseTaps& taps) {
  TapGemm gemm{};
  gemm.kind = Taps::kWindow;
  gemm.source = dweight.x;
  gemm.source_type = dweight.x_type;
  gemm.compute_type = dweight.g_type;
  gemm.batch = dweight.batch;
  gemm.nodes = int64_t{taps.out_size[0]} * taps.out_size[1];
  gemm.source_rows = int64_t{taps.in_size[0]} * taps.in_size[1];
  gemm.depth = dweight.channels;
  gemm.columns = dweight.columns;
  gemm.slots = dweight.slots;
  gemm.groups = dweight.shapes.groups;
  gemm.source_groups = dweight.x_groups;
  for (int d = 0; d < 2; ++d) {
    gemm.window.stride[d] = taps.stride[d];
    gemm.window.padding[d] = taps.padding[d];
    gemm.window.dilation[d] = taps.dilation[d];
    gemm.window.source_size[d] = taps.in_size[d];
    gemm.window.out_size[d] = taps.out_size[d];
  }
  gemm.window.kernel[1] = taps.kernel_width;
  gemm.window.kernel[0] = taps.kernel_width > 0 ? dweight.slots / taps.kernel_width : 0;
  return gemm;
}

bool PlanHaloDweight(const Dweight& dweight, const TapGemm& forward, int multiprocessors, int shared_limit,
                     HaloDweightPlan* plan) {
  // Large tiles have the smaller halos; several on a multiprocessor do not make up for it.
  for (int pixels : {256, 128, 64}) {
    if (PlanPixels(dweight, forward, ShapeOf(forward), pixels, multiprocessors, shared_limit, plan)) return true;
  }
  return false;
}

}  // namespace knnconv::gpu
