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
  constexpr int kMostDepth = 32, kMostColumns = 64;
  HaloPlan plan;
  if (gemm.depth > kMostDepth || gemm.columns > kMostColumns || gemm.slots < 2 || !Plan(gemm, device, &plan)) return false;
  return plan.bytes <= device.shared_bytes / 2;  // a block alone on its multiprocessor cannot hide its copies
}

Status RunHalo(const LaunchSite& site, const TapGemm& gemm, const Device& device) {
  if (IsEmpty(gemm)) return {};
  HaloPlan plan;
  if (!Plan(gemm, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  return gemm.compute_type == Element::kF16 ? LaunchHalo<Half>(site, gemm, plan, device.shared_bytes)
                                            : LaunchHalo<BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::gpu
