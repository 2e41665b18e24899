// The halo kernels that ship, and which of them takes a TapGemm.
#pragma once

#include "gpu/halo_plan.h"

namespace knnconv::gpu {

// Instantiated in a source of its own for each type of products.
template <typename T>
Status LaunchHalo(const LaunchSite& site, const TapGemm& gemm, const HaloPlan& plan, int shared_limit);

}  // namespace knnconv::gpu
