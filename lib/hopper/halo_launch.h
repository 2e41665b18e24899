// The halo kernels that ship, and which of them takes a TapGemm.
#pragma once

#include "gpu/launch.h"
#include "hopper/halo_map.h"

namespace knnconv::hopper {

// Instantiated in a source of its own for each type of products.
template <typename T>
gpu::Status LaunchHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                       const HaloMaps& maps, int shared_limit);

}  // namespace knnconv::hopper
