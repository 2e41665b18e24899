// Which kernel runs a TapPlan. Each pair of element type and weight order is instantiated in a source of its own.
#pragma once

#include "gpu/launch.h"
#include "hopper/tap_plan.h"

namespace knnconv::hopper {

// A tile's rows (128, 256) and columns (64, 128; 192 and 256 with 128 rows).
struct TileForm {
  int rows, columns;
};

template <typename T, bool kTransposed>
gpu::Status LaunchTapPlan(const gpu::LaunchSite& site, const TapPlan& plan, const TileForm& form, int multiprocessors);

}  // namespace knnconv::hopper
