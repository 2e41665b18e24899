// Forward over a table whose samples fit into shared memory, on Hopper.
#pragma once

#include "gpu/device.h"
#include "gpu/launch.h"
#include "hopper/sample_plan.h"

namespace knnconv::hopper {

// Of a `gemm` that fits (FitsSample).
gpu::Status RunSamples(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device);

}  // namespace knnconv::hopper
