#include "gpu/stem_instances.h"

namespace knnconv::gpu {
template Status LaunchStem<Half>(const LaunchSite&, const TapGemm&, const StemPlan&, int);
}  // namespace knnconv::gpu
