// Weight gradients over a table without slots.
#include "gpu/dweight_instances.h"

namespace knnconv::gpu {
template Status LaunchDweight<ColumnTaps>(const LaunchSite&, const Dweight&, const ColumnTaps&, const DweightLaunch&);
}  // namespace knnconv::gpu
