// Runs a TapGemm as tap_choice.h decides.
#include "gpu/tap_gemm.h"

#include "gpu/halo.h"
#include "gpu/tap_choice.h"
#include "hopper/halo.h"
#include "hopper/stem_dinput.h"
#include "hopper/tap_gemm.h"

namespace knnconv::gpu {
namespace {

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device&, const TapLaunch& launch) {
  if (gemm.compute_type == Element::kF16) {
    return gemm.transposed ? LaunchTapGemm<Half, true>(site, gemm, launch)
                           : LaunchTapGemm<Half, false>(site, gemm, launch);
  }
  return gemm.transposed ? LaunchTapGemm<BFloat, true>(site, gemm, launch)
                         : LaunchTapGemm<BFloat, false>(site, gemm, launch);
}

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device& device, const HaloPlan& plan) {
  if constexpr (kHasHaloKernels) return RunHalo(site, gemm, device, plan);
  return Refused(KernelFamily::kHalo, __FILE__, __LINE__);
}

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device& device, const StemPlan& plan) {
  if constexpr (kHasHaloKernels) return RunStem(site, gemm, device, plan);
  return Refused(KernelFamily::kHalo, __FILE__, __LINE__);
}

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device& device, const StemDinputPlan& plan) {
  if constexpr (kHasHaloKernels) return RunStemDinput(site, gemm, device, plan);
  return Refused(KernelFamily::kHalo, __FILE__, __LINE__);
}

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device& device, const hopper::TapForm& form) {
  if constexpr (kHasHopperKernels) return hopper::RunTapGemm(site, gemm, device, form);
  return Refused(KernelFamily::kHopper, __FILE__, __LINE__);
}

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device& device, const hopper::HaloPlan& plan) {
  if constexpr (kHasHopperKernels) return hopper::RunHalo(site, gemm, device, plan);
  return Refused(KernelFamily::kHopper, __FILE__, __LINE__);
}

Status Run(const LaunchSite& site, const TapGemm& gemm, const Device& device, const hopper::StemDinputPlan& plan) {
  if constexpr (kHasHopperKernels) return hopper::RunStemDinput(site, gemm, device, plan);
  return Refused(KernelFamily::kHopper, __FILE__, __LINE__);
}

}  // namespace

Status RunTapGemm(const LaunchSite& site, const TapGemm& gemm, const TileChoice& wanted, bool* leaves_hubs) {
  Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  TapDecision decision;
  KNNCONV_GPU_RETURN_IF_ERROR(ChooseTapGemm(gemm, device, wanted, &decision));
  if (leaves_hubs != nullptr) {
    const bool stem = std::holds_alternative<StemDinputPlan>(decision) ||
                      std::holds_alternative<hopper::StemDinputPlan>(decision);
    *leaves_hubs = gemm.kind == Taps::kSources && !stem;
  }
  return std::visit([&](const auto& chosen) { return Run(site, gemm, device, chosen); }, decision);
}

}  // namespace knnconv::gpu
