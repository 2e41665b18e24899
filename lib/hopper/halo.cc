#include "hopper/halo.h"

#include "hopper/halo_launch.h"
#include "hopper/halo_map.h"

namespace knnconv::hopper {

gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device,
                    const HaloPlan& plan) {
  HaloMaps maps{};
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  if (!site.prepare && !HasPairs(gemm)) {
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(ImageMap(gemm.source_type, gemm.source, gemm.batch, gemm.window.source_size,
                                                gemm.depth, plan.halo, plan.pixel_bytes), &maps.source));
  }
  if (!site.prepare && HasPairs(gemm)) {
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(LineMap(gemm.source_type, gemm.source, gemm.batch, gemm.window.source_size,
                                               gemm.depth, plan.halo[0], plan.pair_lines.raw_pitch), &maps.source));
  }
  if (!site.prepare && !HasPairs(gemm) && !HasFolds(gemm)) {
    KNNCONV_GPU_RETURN_IF_ERROR(
        Encode(SlotMap(gemm, plan.steps_of_group * kHaloDepth, HaloColumns(gemm)), &maps.weight));
    for (int i = 0; i < plan.classes_of_pixels.count; ++i) {
      KNNCONV_GPU_RETURN_IF_ERROR(Encode(ResultMap(gemm, plan, plan.classes_of_pixels.of[i]), &maps.out[i]));
    }
  }
  const int shared_limit = device.shared_bytes;
  return gemm.compute_type == gpu::Element::kF16 ? LaunchHalo<gpu::Half>(site, gemm, plan, maps, shared_limit)
                                                 : LaunchHalo<gpu::BFloat>(site, gemm, plan, maps, shared_limit);
}

}  // namespace knnconv::hopper
