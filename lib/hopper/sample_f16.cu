#include "hopper/sample_kernel.h"

namespace knnconv::hopper {
template gpu::Status LaunchSamples<gpu::Half>(const gpu::LaunchSite&, const SampleTask&, int64_t, int);
}  // namespace knnconv::hopper
