#include "gpu/halo_dweight.h"

#include "gpu/dweight_reduce.h"
#include "gpu/halo_dweight_plan.h"

namespace knnconv::gpu {
namespace {

bool Plan(const Dweight& dweight, const DenseTaps& taps, const Device& device, HaloDweightPlan* plan) {
  const int64_t pixels = dweight.batch * taps.in_size[0] * taps.in_size[1];
  const bool empty = pixels == 0 || taps.out_size[0] == 0 || taps.out_size[1] == 0 || dweight.slots == 0 ||
                     dweight.channels == 0 || dweight.columns == 0;
  if (empty || dweight.shapes.members.count() != 1) return false;
  const TapGemm forward = ForwardOf(dweight, taps);
  return PlanHaloDweight(dweight, forward, ChooseHaloDweight(forward), device.multiprocessors, device.shared_bytes,
                         plan);
}

}  // namespace

bool HaloCan(const Dweight& dweight, const DenseTaps& taps, const Device& device) {
  HaloDweightPlan plan;
  return Plan(dweight, taps, device, &plan);
}

bool HaloTakes(const Dweight& dweight, const DenseTaps& taps, const Device& device) {
  // With fewer pixels a tile, partial sums outweigh the products: 8x8, 32 -> 32 takes 1.4 of the portable kernel's
  // time.
  constexpr int kMostDepth = 32, kMostColumns = 64, kLeastPixels = 128;
  HaloDweightPlan plan;
  return dweight.channels <= kMostDepth && dweight.columns <= kMostColumns && dweight.slots > 1 &&
         Plan(dweight, taps, device, &plan) && plan.row_tiles == 1 && plan.tile[0] * plan.tile[1] >= kLeastPixels;
}

Status RunHaloDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const Device& device) {
  HaloDweightPlan plan;
  if (!Plan(dweight, taps, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  const TapGemm forward = ForwardOf(dweight, taps);
  const HaloDweightShape shape = ChooseHaloDweight(forward);
  KNNCONV_GPU_RETURN_IF_ERROR(
      dweight.g_type == Element::kF16
          ? LaunchHaloDweight<Half>(site, dweight, forward, shape, plan, device.shared_bytes)
          : LaunchHaloDweight<BFloat>(site, dweight, forward, shape, plan, device.shared_bytes));
  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  return RunReduce(site, forward.groups.count(), {dweight.partials, plan.slices, weight, dweight.dw, dweight.dw_type},
                   {plan.bias_partials, plan.slices, dweight.db != nullptr ? dweight.columns : 0, dweight.db,
                    dweight.db_type});
}

}  // namespace knnconv::gpu
