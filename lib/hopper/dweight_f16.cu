#include "hopper/dweight_launch.h"

namespace knnconv::hopper {

template <>
gpu::Status LaunchDweight<gpu::Half>(const gpu::LaunchSite& site, int tile, const CUtensorMap& x,
                                      const CUtensorMap& g, const DweightTask& task) {
  return LaunchDweightTile<gpu::Half>(site, tile, x, g, task);
}

}  // namespace knnconv::hopper
