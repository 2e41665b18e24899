#include "gpu/tap_gemm_instances.h"

namespace knnconv::gpu {
template int SharedBytesOf<BFloat, false>(const TapLaunch&);
template Status LaunchTapGemm<BFloat, false>(const LaunchSite&, const TapGemm&, const TapGrid&, const TapLaunch&);
}  // namespace knnconv::gpu
