#include "gpu/tap_gemm_instances.h"

namespace knnconv::gpu {
template Status LaunchTapGemm<BFloat, true>(const LaunchSite&, const TapGemm&, const TapLaunch&);
}  // namespace knnconv::gpu
