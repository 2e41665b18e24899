// Defines LaunchHaloDweight; included by the sources that instantiate it.
#pragma once

#include "hopper/halo_dweight_kernel.h"

namespace knnconv::hopper {

template <typename T>
gpu::Status LaunchHaloDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::TapGemm& forward,
                              const HaloDweightPlan& plan, int shared_limit) {
  const int64_t blocks = int64_t{plan.column_tiles} * plan.slices;
  return gpu::LaunchSized<HaloDweightKernel<T>>(site, blocks, kDweightTeams * kTeamThreads, plan.bytes,
                                                shared_limit - kDweightBarrierBytes, dweight, forward, plan);
}

}  // namespace knnconv::hopper
