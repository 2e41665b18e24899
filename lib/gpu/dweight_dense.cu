// Weight gradients of a dense convolution.
#include "gpu/dweight_launch.h"

namespace knnconv::gpu {

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const DweightChoice& choice) {
  const int64_t positions = dweight.shapes.members.count() * dweight.batch * taps.out_size[0] * taps.out_size[1];
  return LaunchDweight(site, dweight, taps, positions, false, choice);
}

}  // namespace knnconv::gpu
