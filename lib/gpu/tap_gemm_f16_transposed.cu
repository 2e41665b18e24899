#include "gpu/tap_gemm_instances.h"

namespace knnconv::gpu {
template int SharedBytesOf<Half, true>(const TapLaunch&);
template Status LaunchTapGemm<Half, true>(const LaunchSite&, const TapGemm&, const TapGrid&, const TapLaunch&);
}  // namespace knnconv::gpu
