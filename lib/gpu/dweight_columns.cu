// Weight gradients over a table without slots.
#include "gpu/dweight_launch.h"

namespace knnconv::gpu {

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const DweightChoice& choice) {
  const int64_t positions = dweight.shapes.members.count() * dweight.batch * taps.table.outputs;
  return LaunchDweight(site, dweight, taps, positions, false, choice);
}

}  // namespace knnconv::gpu
