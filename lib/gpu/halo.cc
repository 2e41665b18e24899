#include "gpu/halo.h"

#include "gpu/halo_launch.h"

namespace knnconv::gpu {
namespace {

constexpr int kLeastPixels = 128;  // of a tile

bool IsEmpty(const TapGemm& gemm) { return gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0; }

bool Plan(const TapGemm& gemm, const Device& device, HaloPlan* plan) {
  return gemm.kind == Taps::kWindow && !IsEmpty(gemm) &&
         PlanHalo(gemm, device.multiprocessors, device.shared_bytes, plan);
}

}  // namespace

bool HaloCan(const TapGemm& gemm, const Device& device) {
  HaloPlan plan;
  return (gemm.kind == Taps::kWindow && IsEmpty(gemm)) || Plan(gemm, device, &plan);
}

bool HaloTakes(const TapGemm& gemm, const Device& device) {
  const bool few = (gemm.depth <= 32 && gemm.columns <= 64) || (gemm.depth <= 64 && gemm.columns <= 32);
  HaloPlan plan;
  if (!few || gemm.slots < 2 || !Plan(gemm, device, &plan)) return false;
  // A block that is alone on its multiprocessor does not hide its copies, and a tile that an image does not fill wastes
  // products: on 8x8 pixels, 32 -> 32, dinput takes 1.1 of the portable kernel's time.
  return plan.bytes <= device.shared_bytes / 2 && plan.tile[0] * plan.tile[1] >= kLeastPixels;
}

Status RunHalo(const LaunchSite& site, const TapGemm& gemm, const Device& device) {
  if (IsEmpty(gemm)) return {};
  HaloPlan plan;
  if (!Plan(gemm, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  return gemm.compute_type == Element::kF16 ? LaunchHalo<Half>(site, gemm, plan, device.shared_bytes)
                                            : LaunchHalo<BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::gpu
