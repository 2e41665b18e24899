#include "hopper/halo_dweight.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dweight_plan.h"
#include "gpu/dweight_reduce.h"
#include "gpu/halo_dweight_plan.h"
#include "hopper/device.h"
#include "hopper/halo_dweight_plan.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::DenseTaps, gpu::Dweight, gpu::IsAligned;

constexpr int kStepPixels = 16;

bool IsEmpty(const Dweight& dweight, const DenseTaps& taps) {
  const int64_t pixels = dweight.batch * taps.in_size[0] * taps.in_size[1] * taps.out_size[0] * taps.out_size[1];
  return pixels == 0 || dweight.slots == 0 || dweight.channels == 0 || dweight.columns == 0;
}

// Rows of 16 bytes alone, and tiles that an image fills: what no tap reads meets no product.
bool Suits(const Dweight& dweight, const DenseTaps& taps, int height, int width) {
  const int kernel_height = dweight.slots / taps.kernel_width;
  return dweight.x_type == dweight.g_type && dweight.channels % gpu::kHaloChunk == 0 &&
         dweight.columns % gpu::kHaloChunk == 0 && IsAligned(dweight.x) && IsAligned(dweight.g) &&
         dweight.shapes.members.count() == 1 && (taps.dilation[0] == 1 || kernel_height == 1) &&
         taps.out_size[0] % height == 0 && taps.out_size[1] % width == 0;
}

bool Plan(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device, HaloDweightPlan* plan) {
  if (!IsHopper(device) || IsEmpty(dweight, taps)) return false;
  const int width = taps.out_size[1] % kStepPixels == 0 ? kStepPixels : kStepPixels / 2;
  if (!Suits(dweight, taps, kDweightPixels / width, width)) return false;
  const gpu::TapGemm forward = gpu::ForwardOf(dweight, taps);
  return gpu::PlanTiles(forward, /*quads=*/false, kTeamThreads, kDweightPixels / width, width, plan) &&
         PlanHaloDweight(dweight, forward, device.multiprocessors, device.shared_bytes, plan);
}

}  // namespace

bool PlanHaloDweight(const Dweight& dweight, const gpu::TapGemm& forward, int multiprocessors, int shared_limit,
                     HaloDweightPlan* plan) {
  LayOutChunks(plan->chunks, plan);
  plan->halo_bytes = plan->halo[0] * plan->line_pitch;
  const int32_t lines_of_step = kStepPixels / plan->tile[1], row_pitch = plan->step[0] * plan->line_pitch;
  plan->steps = kDweightPixels / kStepPixels;
  plan->step_pitch = lines_of_step * row_pitch;
  plan->lead = lines_of_step == 1 ? kStepPixels / 2 * 16 : row_pitch;
  plan->pieces = static_cast<int32_t>(CeilDiv(forward.window.kernel[0] * plan->chunks, kGroupChunks));
  if (forward.window.kernel[1] * plan->pieces > kDweightGroups) return false;

  plan->column_tiles = static_cast<uint32_t>(CeilDiv(dweight.columns, kDweightColumns));
  plan->cotangent_chunks = std::min(dweight.columns, kDweightColumns) / gpu::kHaloChunk;
  plan->by_cotangent_chunks = gpu::Divisor(plan->cotangent_chunks);
  plan->cotangent_pitch = ChunkPitch(kDweightPixels, plan->cotangent_chunks);
  plan->cotangent_bytes = kDweightColumns / gpu::kHaloChunk * plan->cotangent_pitch;
  // A group reads all its chunks, whether they are there or not.
  const int64_t halo_bytes = plan->halo_bytes + kGroupChunks * plan->chunk_pitch;
  plan->stage_bytes = static_cast<int32_t>(CeilDiv(plan->cotangent_bytes + halo_bytes, 128) * 128);
  constexpr int kSumBytes = kDweightGroups * kGroupChunks * 8 * kDweightColumns * 4;  // of a team
  const int64_t bytes = std::max<int64_t>(int64_t{2 * kDweightTeams} * plan->stage_bytes, kSumBytes);
  if (bytes > shared_limit) return false;
  plan->bytes = static_cast<int32_t>(bytes);

  // Slices fill the device once, as far as there is room, or are as many as keep chains short.
  const int64_t groups = forward.groups.count(), all_tiles = plan->all_tiles;
  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  const int64_t room = dweight.partial_elements / (groups * (weight + (dweight.db != nullptr ? dweight.columns : 0)));
  const int64_t least = CeilDiv(all_tiles, kDweightTeams * (gpu::kChainPositions / kDweightPixels));
  const int64_t most = std::min<int64_t>({room, multiprocessors / (groups * plan->column_tiles),
                                          CeilDiv(all_tiles, kDweightTeams)});
  const int64_t slices = std::max<int64_t>({least, most, 1});
  if (slices > room || groups * plan->column_tiles * slices > INT32_MAX) return false;
  plan->slices = static_cast<uint32_t>(slices);
  plan->bias_partials = dweight.db != nullptr ? dweight.partials + groups * slices * weight : nullptr;
  return true;
}

bool HaloCan(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device) {
  HaloDweightPlan plan;
  return Plan(dweight, taps, device, &plan);
}

bool HaloTakes(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device) {
  constexpr int kMostDepth = 32, kMostColumns = 64;
  return dweight.channels <= kMostDepth && dweight.columns <= kMostColumns && dweight.slots > 1 &&
         HaloCan(dweight, taps, device);
}

gpu::Status RunHaloDweight(const gpu::LaunchSite& site, const Dweight& dweight, const DenseTaps& taps,
                           const gpu::Device& device) {
  HaloDweightPlan plan;
  if (!Plan(dweight, taps, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  const gpu::TapGemm forward = gpu::ForwardOf(dweight, taps);
  KNNCONV_GPU_RETURN_IF_ERROR(
      dweight.g_type == gpu::Element::kF16
          ? LaunchHaloDweight<gpu::Half>(site, dweight, forward, plan, device.shared_bytes)
          : LaunchHaloDweight<gpu::BFloat>(site, dweight, forward, plan, device.shared_bytes));
  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  return gpu::RunReduce(site, forward.groups.count(),
                        {dweight.partials, plan.slices, weight, dweight.dw, dweight.dw_type},
                        {plan.bias_partials, plan.slices, dweight.db != nullptr ? dweight.columns : 0, dweight.db,
                         dweight.db_type});
}

}  // namespace knnconv::hopper
