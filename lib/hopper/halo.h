// Forward and dinput of dense convolutions with few channels on Hopper: the launch of halo_kernel.h.
#pragma once

#include "gpu/launch.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {

gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device,
                    const HaloPlan& plan);

}  // namespace knnconv::hopper
