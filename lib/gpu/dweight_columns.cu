// Weight gradients over a table without slots.
#include "gpu/dweight_launch.h"
#include "gpu/stem_dweight.h"

namespace knnconv::gpu {

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const DweightChoice& choice) {
  if constexpr (kHasHaloKernels) {
    const bool forced = choice.kernel == KernelFamily::kHalo;
    Device device;
    KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
    if (Allows(choice.kernel, KernelFamily::kHalo) &&
        (forced ? StemCan(dweight, taps, device) : StemTakes(dweight, taps, device))) {
      return RunStemDweight(site, dweight, taps, device);
    }
  }
  const int64_t positions = dweight.shapes.members.count() * dweight.batch * taps.table.outputs;
  return LaunchDweight(site, dweight, taps, positions, false, choice);
}

}  // namespace knnconv::gpu
