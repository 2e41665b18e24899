// Defines LaunchHalo; included by the sources that instantiate it.
#pragma once

#include "hopper/halo_kernel.h"
#include "hopper/halo_launch.h"

namespace knnconv::hopper {

template <typename T, bool kPairs, bool kTransposed>
gpu::Status LaunchHaloOrder(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                            const CUtensorMap& source, int shared_limit) {
  const int64_t blocks = int64_t{plan.classes} * plan.column_tiles * plan.blocks_of_kind;
  const int most = shared_limit - kHaloBarrierBytes;
  if (HaloColumns(gemm) == 32) {
    using Shape = HaloShape<T, kPairs, kTransposed, 32>;
    return gpu::LaunchSized<HaloKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, most, gemm, plan,
                                                 source);
  }
  using Shape = HaloShape<T, kPairs, kTransposed, 64>;
  return gpu::LaunchSized<HaloKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, most, gemm, plan,
                                                 source);
}

template <typename T>
gpu::Status LaunchHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                       const CUtensorMap& source, int shared_limit) {
  if (HasPairs(gemm)) return LaunchHaloOrder<T, true, false>(site, gemm, plan, source, shared_limit);
  return gemm.transposed ? LaunchHaloOrder<T, false, true>(site, gemm, plan, source, shared_limit)
                         : LaunchHaloOrder<T, false, false>(site, gemm, plan, source, shared_limit);
}

}  // namespace knnconv::hopper
