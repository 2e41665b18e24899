// Weight gradients of dense convolutions with few channels: when the kernels of halo_dweight_kernel.h run, and their
// launches.
#pragma once

#include "gpu/device.h"
#include "gpu/dweight_reduce.h"
#include "gpu/halo_dweight_plan.h"

namespace knnconv::gpu {

// Whether the halo kernels are to compute `dweight`: where they can if `forced`, else where they are expected to be the
// fastest, too; and how they are laid out.
bool ChooseHalo(const Dweight& dweight, const DenseTaps& taps, const Device& device, bool forced,
                HaloDweightPlan* plan);

inline Status RunHalo(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const Device& device,
                      const HaloDweightPlan& plan) {
  const TapGemm forward = ForwardOf(dweight, taps);
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == Element::kF16
                                  ? LaunchHaloDweight<Half>(site, dweight, forward, plan, device.shared_bytes)
                                  : LaunchHaloDweight<BFloat>(site, dweight, forward, plan, device.shared_bytes));
  return RunReduce(site, dweight, plan.slices, 1);
}

}  // namespace knnconv::gpu
