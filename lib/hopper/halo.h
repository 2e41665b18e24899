// Forward and dinput of dense convolutions with few channels on Hopper: the kernels of halo_kernel.h, and when they run.
#pragma once

#include "gpu/device.h"
#include "gpu/tap_gemm.h"

namespace knnconv::hopper {

// Whether the halo kernels can compute `gemm` on the device.
bool HaloCan(const gpu::TapGemm& gemm, const gpu::Device& device);

// Whether they are the ones to choose by shape.
bool HaloTakes(const gpu::TapGemm& gemm, const gpu::Device& device);

// InvalidConfiguration where HaloCan is false.
gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device);

}  // namespace knnconv::hopper
