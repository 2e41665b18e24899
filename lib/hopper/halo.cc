#include "hopper/halo.h"

#include "hopper/device.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {
namespace {

bool IsEmpty(const gpu::TapGemm& gemm) { return gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0; }

bool Plan(const gpu::TapGemm& gemm, const gpu::Device& device, HaloPlan* plan) {
  return IsHopper(device) && !IsEmpty(gemm) && PlanHalo(gemm, device.multiprocessors, device.shared_bytes, plan);
}

}  // namespace

bool HaloCan(const gpu::TapGemm& gemm, const gpu::Device& device) {
  HaloPlan plan;
  return Plan(gemm, device, &plan);
}

bool HaloTakes(const gpu::TapGemm& gemm, const gpu::Device& device) {
  const bool few = (gemm.depth <= 32 && gemm.columns <= 64) || (gemm.depth <= 64 && gemm.columns <= 32);
  HaloPlan plan;
  if (!few || gemm.slots < 2 || !Plan(gemm, device, &plan)) return false;
  // Where an image fills its tiles.
  const auto& size = gpu::LargestClass(gemm.window).pixels;
  const int64_t covered = int64_t{plan.tiles[0]} * plan.tile[0] * plan.tiles[1] * plan.tile[1];
  return 2 * size[0] * size[1] > covered;
}

gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device) {
  HaloPlan plan;
  if (!Plan(gemm, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  return gemm.compute_type == gpu::Element::kF16 ? LaunchHalo<gpu::Half>(site, gemm, plan, device.shared_bytes)
                                                 : LaunchHalo<gpu::BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::hopper
