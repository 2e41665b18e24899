#include "gpu/halo.h"

#include "gpu/halo_launch.h"

namespace knnconv::gpu {
namespace {

bool IsEmpty(const TapGemm& gemm) { return gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0; }

bool Plan(const TapGemm& gemm, const Device& device, HaloPlan* plan) {
  return gemm.kind == Taps::kWindow && !IsEmpty(gemm) &&
         PlanHalo(gemm, device.multiprocessors, device.shared_bytes, plan);
}

}  // namespace

bool HaloCan(const TapGemm& gemm, const Device& device) {
  HaloPlan plan;
  return IsEmpty(gemm) || Plan(gemm, device, &plan);
}

bool HaloTakes(const TapGemm& gemm, const Device& device) {
  const bool few = (gemm.depth <= 32 && gemm.columns <= 64) || (gemm.depth <= 64 && gemm.columns <= 32);
  HaloPlan plan;
  // A block that is alone on its multiprocessor does not hide its copies.
  return few && gemm.slots > 1 && Plan(gemm, device, &plan) && plan.bytes <= device.shared_bytes / 2;
}

Status RunHalo(const LaunchSite& site, const TapGemm& gemm, const Device& device) {
  if (IsEmpty(gemm)) return {};
  HaloPlan plan;
  if (!Plan(gemm, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  return gemm.compute_type == Element::kF16 ? LaunchHalo<Half>(site, gemm, plan, device.shared_bytes)
                                            : LaunchHalo<BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::gpu
