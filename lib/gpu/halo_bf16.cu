#include "gpu/halo_instances.h"

namespace knnconv::gpu {
template Status LaunchHalo<BFloat>(const LaunchSite&, const TapGemm&, const HaloPlan&, int);
}  // namespace knnconv::gpu
