// Weight gradients of a dense convolution.
#include "gpu/dweight_launch.h"
#include "gpu/halo_dweight.h"
#ifdef KNNCONV_HOPPER
#include "hopper/halo_dweight.h"
#endif

namespace knnconv::gpu {

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const DweightChoice& choice) {
#ifdef KNNCONV_HOPPER
  if (Allows(choice.kernel, KernelFamily::kHopper)) {
    Device device;
    KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
    hopper::HaloDweightPlan plan;
    if (hopper::ChooseHalo(dweight, taps, device, /*forced=*/false, &plan)) {
      return hopper::RunHalo(site, dweight, taps, device, plan);
    }
  }
#endif
  if constexpr (kHasHaloKernels) {
    const bool forced = choice.kernel == KernelFamily::kHalo;
    Device device;
    KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
    if (Allows(choice.kernel, KernelFamily::kHalo) &&
        (forced ? HaloCan(dweight, taps, device) : HaloTakes(dweight, taps, device))) {
      return RunHaloDweight(site, dweight, taps, device);
    }
  }
  const int64_t positions = dweight.shapes.members.count() * dweight.batch * taps.out_size[0] * taps.out_size[1];
  return LaunchDweight(site, dweight, taps, positions, false, choice);
}

}  // namespace knnconv::gpu
