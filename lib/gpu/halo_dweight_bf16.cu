#include "gpu/halo_dweight_instances.h"

namespace knnconv::gpu {
template Status LaunchHaloDweight<BFloat>(const LaunchSite&, const Dweight&, const TapGemm&, const HaloDweightPlan&,
                                          int);
}  // namespace knnconv::gpu
