#include "hopper/tap_instances.h"

namespace knnconv::hopper {
template gpu::Status LaunchTapPlan<gpu::BFloat, true>(const gpu::LaunchSite&, const TapPlan&, const TileForm&, int);
}  // namespace knnconv::hopper
