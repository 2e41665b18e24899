// Defines LaunchHaloDweight; included by the sources that instantiate it.
#pragma once

#include "hopper/halo_dweight_kernel.h"
#include "hopper/halo_dweight_launch.h"
#include "hopper/halo_pair_dweight.h"
#include "hopper/halo_patch_dweight.h"

namespace knnconv::hopper {

template <typename T, typename From>
gpu::Status LaunchPairsFrom(const gpu::LaunchSite& site, int64_t blocks, const gpu::Dweight& dweight,
                            const HaloDweightPlan& plan, const CUtensorMap& x, const CUtensorMap& g, int shared_limit) {
  const auto most = [&](const PairGroups& groups) { return shared_limit / groups.blocks - kDweightBarrierBytes; };
  constexpr int kThreads = kDweightTeams * kTeamThreads;
  if (plan.groups_of_kind == kFewPairs.groups) {
    constexpr auto kKernel =
        HaloPairDweight<T, From, kFewPairs.groups, kFewPairs.taps_down, kFewPairs.blocks>;
    return gpu::LaunchSized<kKernel>(site, blocks, kThreads, plan.bytes, most(kFewPairs), dweight, plan, x, g);
  }
  constexpr auto kKernel = HaloPairDweight<T, From, kManyPairs.groups, kManyPairs.taps_down, kManyPairs.blocks>;
  return gpu::LaunchSized<kKernel>(site, blocks, kThreads, plan.bytes, most(kManyPairs), dweight, plan, x, g);
}

template <typename T>
gpu::Status LaunchPairs(const gpu::LaunchSite& site, int64_t blocks, const gpu::Dweight& dweight,
                        const HaloDweightPlan& plan, const CUtensorMap& x, const CUtensorMap& g, int shared_limit) {
  return dweight.x_type == gpu::Element::kF32
             ? LaunchPairsFrom<T, float>(site, blocks, dweight, plan, x, g, shared_limit)
             : LaunchPairsFrom<T, T>(site, blocks, dweight, plan, x, g, shared_limit);
}

template <typename T>
gpu::Status LaunchHaloDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::TapGemm& forward,
                              const HaloDweightPlan& plan, const CUtensorMap& x, const CUtensorMap& g,
                              int shared_limit) {
  const int64_t blocks = int64_t{plan.column_tiles} * plan.kinds * plan.slices;
  if (HasPairs(plan)) return LaunchPairs<T>(site, blocks, dweight, plan, x, g, shared_limit);
  if (HasPatches(plan)) {
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
