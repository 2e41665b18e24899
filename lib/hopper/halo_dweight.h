// Weight gradients of dense convolutions with few channels on Hopper: the kernels of halo_dweight_kernel.h, and when they
// run.
#pragma once

#include "gpu/device.h"
#include "gpu/dweight.h"

namespace knnconv::hopper {

// Whether the halo kernels can compute `dweight` on the device.
bool HaloCan(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device);

// Whether they are the ones to choose by shape.
bool HaloTakes(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device);

// InvalidConfiguration where HaloCan is false.
gpu::Status RunHaloDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::DenseTaps& taps,
                           const gpu::Device& device);

}  // namespace knnconv::hopper
