#include "hopper/halo_instances.h"

namespace knnconv::hopper {
template gpu::Status LaunchHalo<gpu::Half>(const gpu::LaunchSite&, const gpu::TapGemm&, const HaloPlan&,
                                          const HaloMaps&, int);
}  // namespace knnconv::hopper
