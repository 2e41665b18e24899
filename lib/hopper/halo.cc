#include "hopper/halo.h"

#include "hopper/halo_launch.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

// A box is a halo.
BoxMap SourceMap(const gpu::TapGemm& gemm, const HaloPlan& plan) {
  const auto depth = static_cast<uint64_t>(gemm.depth), width = static_cast<uint64_t>(gemm.window.source_size[1]);
  const auto height = static_cast<uint64_t>(gemm.window.source_size[0]), batch = static_cast<uint64_t>(gemm.batch);
  BoxMap map{gemm.source_type, gemm.source, 4, {depth, width, height, batch}, {}, {}, plan.pixel_bytes};
  map.stride[0] = 2 * depth;
  map.stride[1] = width * map.stride[0];
  map.stride[2] = height * map.stride[1];
  map.box[0] = static_cast<uint32_t>(plan.pixel_bytes / 2);
  map.box[1] = static_cast<uint32_t>(plan.halo[1]);
  map.box[2] = static_cast<uint32_t>(plan.halo[0]);
  map.box[3] = 1;
  return map;
}

}  // namespace

gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device,
                    const HaloPlan& plan) {
  CUtensorMap source{};
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  if (!site.prepare && !HasPairs(gemm)) KNNCONV_GPU_RETURN_IF_ERROR(Encode(SourceMap(gemm, plan), &source));
  const int shared_limit = device.shared_bytes;
  return gemm.compute_type == gpu::Element::kF16 ? LaunchHalo<gpu::Half>(site, gemm, plan, source, shared_limit)
                                                 : LaunchHalo<gpu::BFloat>(site, gemm, plan, source, shared_limit);
}

}  // namespace knnconv::hopper
