// The second kernel of a weight gradient of few channels on Hopper: adds up blocks' partial sums, in an order that
// follows from their number.
#pragma once

#include "gpu/dweight.h"
#include "gpu/launch.h"
#include "hopper/halo_dweight_plan.h"

namespace knnconv::hopper {

gpu::Status RunHaloReduce(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const HaloDweightPlan& plan);

}  // namespace knnconv::hopper
