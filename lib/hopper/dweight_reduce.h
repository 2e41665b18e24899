// The second kernel of a weight gradient on Hopper: the parts of each tile of dw, added in the order of the schedule's
// line and rounded once, and the sums of g's columns likewise.
#pragma once

#include "gpu/dweight.h"
#include "gpu/launch.h"
#include "hopper/dweight_task.h"

namespace knnconv::hopper {

// `tile` is the one that `task` was computed with.
gpu::Status RunDweightReduce(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const DweightTask& task,
                             const DweightTileSize& tile);

}  // namespace knnconv::hopper
