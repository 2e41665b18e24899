// Defines LaunchHaloDweight; included by the sources that instantiate it.
#pragma once

#include "hopper/halo_dweight_kernel.h"
#include "hopper/halo_dweight_launch.h"
#include "hopper/halo_patch_dweight.h"

namespace knnconv::hopper {

template <typename T>
gpu::Status LaunchHaloDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::TapGemm& forward,
                              const HaloDweightPlan& plan, const CUtensorMap& x, const CUtensorMap& g,
                              int shared_limit) {
  const int64_t blocks = int64_t{plan.column_tiles} * plan.kinds * plan.slices;
  if (HasPatches(dweight)) {
    const int most = shared_limit / 2;
    if (dweight.x_type == gpu::Element::kF32) {
      return gpu::LaunchSized<HaloPatchDweight<T, float>>(site, blocks, kDweightTeams * kTeamThreads, plan.bytes, most,
                                                         dweight, forward, plan, g);
    }
    return gpu::LaunchSized<HaloPatchDweight<T, T>>(site, blocks, kDweightTeams * kTeamThreads, plan.bytes, most,
                                                   dweight, forward, plan, g);
  }
  const int most = shared_limit - kDweightBarrierBytes;
  if (IsWide(plan)) {
    return gpu::LaunchSized<HaloDweightKernel<T, 1, kWideRows>>(site, blocks, kDweightTeams * kTeamThreads, plan.bytes,
                                                                most, dweight, forward, plan, x, g);
  }
  return gpu::LaunchSized<HaloDweightKernel<T, kDweightGroups, kGroupRows>>(
      site, blocks, kDweightTeams * kTeamThreads, plan.bytes, most, dweight, forward, plan, x, g);
}

}  // namespace knnconv::hopper
