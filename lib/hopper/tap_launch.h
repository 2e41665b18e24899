// Which kernel runs a TapPlan. Each pair of element type and weight order is instantiated in a source of its own.
#pragma once

#include "gpu/launch.h"
#include "hopper/tap_plan.h"

namespace knnconv::hopper {

template <typename T, bool kTransposed>
gpu::Status LaunchTapPlan(const gpu::LaunchSite& site, const TapPlan& plan, const TileForm& form, int multiprocessors);

}  // namespace knnconv::hopper
