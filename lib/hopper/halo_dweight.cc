#include "hopper/halo_dweight.h"

#include "gpu/halo_dweight_plan.h"
#include "hopper/halo_dweight_launch.h"
#include "hopper/halo_dweight_reduce.h"
#include "hopper/halo_map.h"

namespace knnconv::hopper {

using gpu::DenseTaps, gpu::Dweight;

gpu::Status RunHalo(const gpu::LaunchSite& site, const Dweight& dweight, const DenseTaps& taps,
                    const gpu::Device& device, const HaloDweightPlan& plan) {
  const gpu::Element type = dweight.g_type;
  CUtensorMap x{}, g{};
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  if (!site.prepare) {
    if (HasPairs(plan)) {
      KNNCONV_GPU_RETURN_IF_ERROR(Encode(LineMap(dweight.x_type, dweight.x, dweight.batch, taps.in_size,
                                                 dweight.channels, plan.halo[0], plan.pair_lines.raw_pitch), &x));
    } else if (!HasPatches(plan)) {
      KNNCONV_GPU_RETURN_IF_ERROR(Encode(ImageMap(type, dweight.x, dweight.batch, taps.in_size, dweight.channels,
                                                  plan.halo, plan.pixel_bytes), &x));
    }
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(ImageMap(type, dweight.g, dweight.batch, taps.out_size, dweight.columns,
                                                plan.tile, plan.cotangent_bytes), &g));
  }
  const gpu::TapGemm forward = gpu::ForwardOf(dweight, taps);
  KNNCONV_GPU_RETURN_IF_ERROR(
      type == gpu::Element::kF16
          ? LaunchHaloDweight<gpu::Half>(site, dweight, forward, plan, x, g, device.shared_bytes)
          : LaunchHaloDweight<gpu::BFloat>(site, dweight, forward, plan, x, g, device.shared_bytes));
  return RunHaloReduce(site, dweight, plan);
}

}  // namespace knnconv::hopper
