// Weight gradients on Hopper (compute capability 9.0), dense and KNN, by TMA and wgmma.
#pragma once

#include "gpu/launch.h"
#include "hopper/dweight_choice.h"

namespace knnconv::hopper {

// Runs a call that ChooseDweight takes, with its plan or with that of another tile (PlanDweight).
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::DenseTaps& taps,
                       const DweightPlan& plan);
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps,
                       const DweightPlan& plan);
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::SlotTaps& taps,
                       const DweightPlan& plan);

}  // namespace knnconv::hopper
