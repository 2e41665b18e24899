#include "gpu/tap_gemm_instances.h"

namespace knnconv::gpu {
template int SharedBytesOf<Half, false>(const TapLaunch&);
template Status LaunchTapGemm<Half, false>(const LaunchSite&, const TapGemm&, const TapGrid&, const TapLaunch&);
}  // namespace knnconv::gpu
