#include "hopper/halo_dweight_instances.h"

namespace knnconv::hopper {
template gpu::Status LaunchHaloDweight<gpu::BFloat>(const gpu::LaunchSite&, const gpu::Dweight&, const gpu::TapGemm&,
                                                 const HaloDweightPlan&, const CUtensorMap&, const CUtensorMap&, int);
}  // namespace knnconv::hopper
