#include "hopper/halo_instances.h"

namespace knnconv::hopper {
template gpu::Status LaunchHalo<gpu::Half>(const gpu::LaunchSite&, const gpu::TapGemm&, const HaloPlan&,
                                          const CUtensorMap&, const CUtensorMap&, int);
}  // namespace knnconv::hopper
