// Weight gradients over a table with slots.
#include "gpu/dweight_launch.h"

namespace knnconv::gpu {

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, const DweightChoice& choice) {
  const int64_t taps_at_most = int64_t{taps.table.outputs} * taps.table.neighbours;
  const int64_t positions = dweight.shapes.members.count() * dweight.batch * taps_at_most;
  return LaunchDweight(site, dweight, taps, positions, true, choice);
}

}  // namespace knnconv::gpu
