#include "hopper/dweight_launch.h"

namespace knnconv::hopper {

template <>
gpu::Status LaunchDweight<gpu::BFloat>(const gpu::LaunchSite& site, int tile, const CUtensorMap& x,
                                        const CUtensorMap& g, const DweightTask& task) {
  return LaunchDweightTile<gpu::BFloat>(site, tile, x, g, task);
}

}  // namespace knnconv::hopper
