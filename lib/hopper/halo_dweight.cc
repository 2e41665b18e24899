#include "hopper/halo_dweight.h"

#include "gpu/dweight_reduce.h"
#include "gpu/halo_dweight_plan.h"
#include "hopper/halo_dweight_launch.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {
namespace {

using gpu::DenseTaps, gpu::Dweight;

// Boxes of height and width pixels of [images, rows, columns, channels], each a line of `line_bytes`.
BoxMap ImageMap(gpu::Element type, const void* address, int64_t images, const int32_t (&size)[2], int64_t channels,
                const int32_t (&box)[2], int line_bytes) {
  BoxMap map{type, address, 4, {}, {}, {static_cast<uint32_t>(line_bytes / 2), 1, 1, 1}, line_bytes};
  map.size[0] = static_cast<uint64_t>(channels);
  map.size[3] = static_cast<uint64_t>(images);
  uint64_t bytes = 2 * map.size[0];
  for (int i = 0; i < 2; ++i) {
    map.size[1 + i] = static_cast<uint64_t>(size[1 - i]);
    map.box[1 + i] = static_cast<uint32_t>(box[1 - i]);
    map.stride[i] = bytes;
    bytes *= map.size[1 + i];
  }
  map.stride[2] = bytes;
  return map;
}

}  // namespace

gpu::Status RunHalo(const gpu::LaunchSite& site, const Dweight& dweight, const DenseTaps& taps,
                    const gpu::Device& device, const HaloDweightPlan& plan) {
  const gpu::Element type = dweight.g_type;
  CUtensorMap x{}, g{};
  KNNCONV_GPU_RETURN_IF_ERROR(PrepareTensorMaps());
  if (!site.prepare) {
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(ImageMap(type, dweight.x, dweight.batch, taps.in_size, dweight.channels,
                                                plan.halo, plan.pixel_bytes), &x));
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(ImageMap(type, dweight.g, dweight.batch, taps.out_size, dweight.columns,
                                                plan.tile, plan.cotangent_bytes), &g));
  }
  const gpu::TapGemm forward = gpu::ForwardOf(dweight, taps);
  KNNCONV_GPU_RETURN_IF_ERROR(
      type == gpu::Element::kF16
          ? LaunchHaloDweight<gpu::Half>(site, dweight, forward, plan, x, g, device.shared_bytes)
          : LaunchHaloDweight<gpu::BFloat>(site, dweight, forward, plan, x, g, device.shared_bytes));
  return gpu::RunReduce(site, dweight, plan.slices, 1);
}

}  // namespace knnconv::hopper
