#include "hopper/sample_dweight_kernel.h"

namespace knnconv::hopper {
template gpu::Status LaunchSampleDweight<gpu::BFloat>(const gpu::LaunchSite&, const CUtensorMap&, const CUtensorMap&,
                                                   const SampleDweightTask&, const SampleDweightCut&);
}  // namespace knnconv::hopper
