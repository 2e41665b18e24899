// Weight gradients over a table with slots.
#include "gpu/dweight_instances.h"

namespace knnconv::gpu {
template Status LaunchDweight<SlotTaps>(const LaunchSite&, const Dweight&, const SlotTaps&, const DweightLaunch&);
}  // namespace knnconv::gpu
