// Weight gradients of a dense convolution.
#include "gpu/dweight_instances.h"

namespace knnconv::gpu {
template Status LaunchDweight<DenseTaps>(const LaunchSite&, const Dweight&, const DenseTaps&, const DweightLaunch&);
}  // namespace knnconv::gpu
