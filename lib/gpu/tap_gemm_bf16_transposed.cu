#include "gpu/tap_gemm_instances.h"

namespace knnconv::gpu {
template int SharedBytesOf<BFloat, true>(const TapLaunch&);
template Status LaunchTapGemm<BFloat, true>(const LaunchSite&, const TapGemm&, const TapGrid&, const TapLaunch&);
}  // namespace knnconv::gpu
