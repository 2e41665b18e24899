#include "gpu/stem_dinput_instances.h"

namespace knnconv::gpu {
template Status LaunchStemDinput<BFloat>(const LaunchSite&, const TapGemm&, const StemDinputPlan&, int);
}  // namespace knnconv::gpu
