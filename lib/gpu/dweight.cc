// Runs a Dweight as dweight_choice.h decides.
#include "gpu/dweight.h"

#include <type_traits>

#include "gpu/dweight_choice.h"
#include "gpu/dweight_reduce.h"
#include "gpu/halo_dweight.h"
#include "hopper/dweight.h"

namespace knnconv::gpu {
namespace {

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const Device&,
           const DweightLaunch& launch) {
  KNNCONV_GPU_RETURN_IF_ERROR(LaunchDweight(site, dweight, taps, launch));
  return RunReduce(site, dweight, launch.grid.slices, launch.grid.bias_parts);
}

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const Device& device,
           const HaloDweightPlan& plan) {
  if constexpr (kHasHaloKernels && std::is_same_v<Taps, DenseTaps>) return RunHalo(site, dweight, taps, device, plan);
  return Refused(KernelFamily::kHalo, __FILE__, __LINE__);
}

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const Device& device,
           const StemDweightPlan& plan) {
  if constexpr (kHasHaloKernels && std::is_same_v<Taps, ColumnTaps>) return RunStem(site, dweight, taps, device, plan);
  return Refused(KernelFamily::kHalo, __FILE__, __LINE__);
}

template <typename Taps>
Status Run(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const Device&,
           const hopper::DweightPlan& plan) {
  if constexpr (kHasHopperKernels) return hopper::RunDweight(site, dweight, taps, plan);
  return Refused(KernelFamily::kHopper, __FILE__, __LINE__);
}

template <typename Taps>
Status ChooseAndRun(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const DweightChoice& wanted) {
  Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  DweightDecision decision;
  KNNCONV_GPU_RETURN_IF_ERROR(ChooseDweight(dweight, taps, device, wanted, &decision));
  return std::visit([&](const auto& chosen) { return Run(site, dweight, taps, device, chosen); }, decision);
}

}  // namespace

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const DweightChoice& wanted) {
  return ChooseAndRun(site, dweight, taps, wanted);
}

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const DweightChoice& wanted) {
  return ChooseAndRun(site, dweight, taps, wanted);
}

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, const DweightChoice& wanted) {
  return ChooseAndRun(site, dweight, taps, wanted);
}

}  // namespace knnconv::gpu
