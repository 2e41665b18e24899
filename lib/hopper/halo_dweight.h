// Weight gradients of dense convolutions with few channels on Hopper: the launch of halo_dweight_kernel.h.
#pragma once

#include "gpu/launch.h"
#include "hopper/halo_dweight_plan.h"

namespace knnconv::hopper {

gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::DenseTaps& taps,
                    const gpu::Device& device, const HaloDweightPlan& plan);

}  // namespace knnconv::hopper
