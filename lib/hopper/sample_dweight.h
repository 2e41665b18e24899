// Weight gradients of samples in shared memory, on Hopper.
#pragma once

#include "gpu/launch.h"
#include "hopper/sample_dweight_plan.h"

namespace knnconv::hopper {

// With a cut that has blocks (CutSampleDweight).
gpu::Status RunSampleDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps,
                             const SampleDweightCut& cut);

}  // namespace knnconv::hopper
