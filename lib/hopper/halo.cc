#include "hopper/halo.h"

#include "hopper/device.h"
#include "hopper/halo_plan.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

bool Plan(const gpu::TapGemm& gemm, const gpu::Device& device, HaloPlan* plan) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0;
  return IsHopper(device) && !empty && PlanHalo(gemm, device.multiprocessors, device.shared_bytes, plan);
}

BoxMap SourceMap(const gpu::TapGemm& gemm, const HaloPlan& plan) {
  const auto depth = static_cast<uint64_t>(gemm.depth), width = static_cast<uint64_t>(gemm.window.source_size[1]);
  const auto height = static_cast<uint64_t>(gemm.window.source_size[0]), batch = static_cast<uint64_t>(gemm.batch);
  const auto bytes = static_cast<uint64_t>(gpu::ElementBytes(gemm.source_type));
  const auto lines = static_cast<uint32_t>(plan.halo[0]);
  if (HasPairs(gemm)) {
    BoxMap map{gemm.source_type, gemm.source, 3, {width * depth, height, batch}, {}, {}, 0};
    map.stride[0] = width * depth * bytes;
    map.stride[1] = height * map.stride[0];
    map.box[0] = static_cast<uint32_t>(plan.raw_line / bytes);
    map.box[1] = lines;
    map.box[2] = 1;
    return map;
  }
  BoxMap map{gemm.source_type, gemm.source, 4, {depth, width, height, batch}, {}, {}, plan.pixel_bytes};
  map.stride[0] = depth * bytes;
  map.stride[1] = width * map.stride[0];
  map.stride[2] = height * map.stride[1];
  map.box[0] = static_cast<uint32_t>(plan.pixel_bytes / bytes);
  map.box[1] = static_cast<uint32_t>(plan.halo[1]);
  map.box[2] = lines;
  map.box[3] = 1;
  return map;
}

}  // namespace

bool HaloCan(const gpu::TapGemm& gemm, const gpu::Device& device) {
  HaloPlan plan;
  return Plan(gemm, device, &plan);
}

bool HaloTakes(const gpu::TapGemm& gemm, const gpu::Device& device) {
  const bool few = (gemm.depth <= 32 && gemm.columns <= 64) || (gemm.depth <= 64 && gemm.columns <= 32);
  HaloPlan plan;
  if (!few || gemm.slots < 2 || !Plan(gemm, device, &plan)) return false;
  // Where an image fills its tiles.
  const auto& size = gpu::LargestClass(gemm.window).pixels;
  const int64_t covered = int64_t{plan.tiles[0]} * plan.tile[0] * plan.tiles[1] * plan.tile[1];
  return 2 * size[0] * size[1] > covered;
}

gpu::Status RunHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device) {
  HaloPlan plan;
  if (!Plan(gemm, device, &plan)) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a halo fits"};
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  if (!site.prepare) KNNCONV_GPU_RETURN_IF_ERROR(Encode(SourceMap(gemm, plan), &plan.source));
  return gemm.compute_type == gpu::Element::kF16 ? LaunchHalo<gpu::Half>(site, gemm, plan, device.shared_bytes)
                                                 : LaunchHalo<gpu::BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::hopper
