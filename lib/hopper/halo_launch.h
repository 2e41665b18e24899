// The halo kernels that ship, and which of them takes a TapGemm.
#pragma once

#include <cuda.h>

#include "gpu/launch.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {

// Instantiated in a source of its own for each type of products.
template <typename T>
gpu::Status LaunchHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                       const CUtensorMap& source, const CUtensorMap& weight, int shared_limit);

}  // namespace knnconv::hopper
