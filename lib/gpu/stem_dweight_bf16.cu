#include "gpu/stem_dweight_instances.h"

namespace knnconv::gpu {
template Status LaunchStemDweight<BFloat>(const LaunchSite&, const Dweight&, const ColumnTaps&,
                                         const StemDweightPlan&, int);
}  // namespace knnconv::gpu
