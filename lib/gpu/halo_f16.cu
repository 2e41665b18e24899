#include "gpu/halo_instances.h"

namespace knnconv::gpu {
template Status LaunchHalo<Half>(const LaunchSite&, const TapGemm&, const HaloPlan&, int);
}  // namespace knnconv::gpu
