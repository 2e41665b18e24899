// Weight gradients of dense convolutions with few channels: the kernels of halo_dweight_kernel.h, and when they run.
#pragma once

#include "gpu/device.h"
#include "gpu/dweight.h"

namespace knnconv::gpu {

// Whether the halo kernels can compute `dweight` on the device.
bool HaloCan(const Dweight& dweight, const DenseTaps& taps, const Device& device);

// Whether they are the ones to choose by shape.
bool HaloTakes(const Dweight& dweight, const DenseTaps& taps, const Device& device);

// InvalidConfiguration where HaloCan is false.
Status RunHaloDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const Device& device);

}  // namespace knnconv::gpu
