// Defines LaunchHalo; included by the sources that instantiate it.
#pragma once

#include "gpu/halo_kernel.h"
#include "gpu/halo_launch.h"

namespace knnconv::gpu {
namespace internal {

template <typename Shape>
Status LaunchHaloShape(const LaunchSite& site, const TapGemm& gemm, const HaloPlan& plan, int shared_limit) {
  const int64_t blocks = gemm.groups.count() * plan.classes * plan.column_tiles * plan.blocks_of_kind;
  return LaunchSized<HaloKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, shared_limit, gemm, plan);
}

template <typename T, bool kTransposed>
Status LaunchHaloOrder(const LaunchSite& site, const TapGemm& gemm, const HaloPlan& plan, int shared_limit) {
  const int products = HaloProducts(gemm);
  if (IsQuad(gemm)) {
    return products == 4 ? LaunchHaloShape<HaloShape<T, true, kTransposed, 4>>(site, gemm, plan, shared_limit)
                         : LaunchHaloShape<HaloShape<T, true, kTransposed, 8>>(site, gemm, plan, shared_limit);
  }
  switch (products) {
    case 1:
      return LaunchHaloShape<HaloShape<T, false, kTransposed, 1>>(site, gemm, plan, shared_limit);
    case 4:
      return LaunchHaloShape<HaloShape<T, false, kTransposed, 4>>(site, gemm, plan, shared_limit);
    default:
      return LaunchHaloShape<HaloShape<T, false, kTransposed, 8>>(site, gemm, plan, shared_limit);
  }
}

}  // namespace internal

template <typename T>
Status LaunchHalo(const LaunchSite& site, const TapGemm& gemm, const HaloPlan& plan, int shared_limit) {
  return gemm.transposed ? internal::LaunchHaloOrder<T, true>(site, gemm, plan, shared_limit)
                         : internal::LaunchHaloOrder<T, false>(site, gemm, plan, shared_limit);
}

}  // namespace knnconv::gpu
