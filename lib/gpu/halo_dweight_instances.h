// Defines LaunchHaloDweight; included by the sources that instantiate it.
#pragma once

#include "gpu/halo_dweight_kernel.h"

namespace knnconv::gpu {

template <typename T>
Status LaunchHaloDweight(const LaunchSite& site, const Dweight& dweight, const TapGemm& forward,
                         const HaloDweightPlan& plan, int shared_limit) {
  const int64_t blocks = forward.groups.count() * plan.slices * plan.row_tiles * plan.column_tiles;
#define KNNCONV_HALO_DWEIGHT(kUnits, kGroups)                                                                          \
  if (plan.shape.units == kUnits && plan.shape.groups == kGroups) {                                                    \
    using Tile = HaloDweightTile<T, kUnits, kGroups>;                                                                  \
    return LaunchSized<HaloDweightKernel<Tile>>(site, blocks, Tile::kThreads, plan.bytes, shared_limit, dweight,       \
                                                forward, plan);                                                        \
  }
  KNNCONV_HALO_DWEIGHT(2, 1)
  KNNCONV_HALO_DWEIGHT(5, 1)
  KNNCONV_HALO_DWEIGHT(7, 1)
  KNNCONV_HALO_DWEIGHT(2, 2)
  KNNCONV_HALO_DWEIGHT(5, 2)
  KNNCONV_HALO_DWEIGHT(7, 2)
#undef KNNCONV_HALO_DWEIGHT
  return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a shape of PlanHaloDweight"};
}

}  // namespace knnconv::gpu
