// Where the members of each list begin in the line of all steps, for tables with slots that are gathered: how many taps
// a slot has is known on the device alone.
#pragma once

#include "gpu/launch.h"
#include "hopper/dweight_task.h"

namespace knnconv::hopper {

// Fills task.starts, and schedule.offsets alike for lists.
gpu::Status RunDweightStarts(const gpu::LaunchSite& site, const DweightTask& task);

}  // namespace knnconv::hopper
