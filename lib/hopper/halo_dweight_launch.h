// The halo kernels of weight gradients that ship.
#pragma once

#include <cuda.h>

#include "gpu/launch.h"
#include "hopper/halo_dweight_plan.h"

namespace knnconv::hopper {

// Launches the first kernel. Instantiated in a source of its own for each type of products.
template <typename T>
gpu::Status LaunchHaloDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::TapGemm& forward,
                              const HaloDweightPlan& plan, const CUtensorMap& x, const CUtensorMap& g,
                              int shared_limit);

}  // namespace knnconv::hopper
