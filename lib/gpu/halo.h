// Forward and dinput of dense convolutions with few channels: the kernels of halo_kernel.h, and when they run.
#pragma once

#include "gpu/device.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

// Whether the halo kernels can compute `gemm` on the device.
bool HaloCan(const TapGemm& gemm, const Device& device);

// Whether they are the ones to choose by shape.
bool HaloTakes(const TapGemm& gemm, const Device& device);

// InvalidConfiguration where HaloCan is false.
Status RunHalo(const LaunchSite& site, const TapGemm& gemm, const Device& device);

}  // namespace knnconv::gpu
