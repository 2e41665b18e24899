// Defines LaunchHalo; included by the sources that instantiate it.
#pragma once

#include <iterator>

#include "hopper/halo_fold_kernel.h"
#include "hopper/halo_kernel.h"
#include "hopper/halo_launch.h"
#include "hopper/halo_pair_kernel.h"

namespace knnconv::hopper {

template <typename T, bool kTransposed, int kGroupSteps>
gpu::Status LaunchHaloColumns(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                            const HaloMaps& maps, int shared_limit) {
  const int64_t blocks = int64_t{plan.classes} * plan.column_tiles * plan.blocks_of_kind;
  const int most = shared_limit - kHaloBarrierBytes;
  if (HaloColumns(gemm) == 32) {
    using Shape = HaloShape<T, HaloLayout::kLines, kTransposed, 32, kGroupSteps>;
    return gpu::LaunchSized<HaloKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, most, gemm, plan,
                                                 maps);
  }
  using Shape = HaloShape<T, HaloLayout::kLines, kTransposed, 64, kGroupSteps>;
  return gpu::LaunchSized<HaloKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, most, gemm, plan,
                                                 maps);
}

template <typename T, bool kTransposed>
gpu::Status LaunchHaloLines(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                            const HaloMaps& maps, int shared_limit) {
  switch (plan.steps_of_group) {
    case 1:
      return LaunchHaloColumns<T, kTransposed, 1>(site, gemm, plan, maps, shared_limit);
    case 2:
      return LaunchHaloColumns<T, kTransposed, 2>(site, gemm, plan, maps, shared_limit);
    default:
      return LaunchHaloColumns<T, kTransposed, 4>(site, gemm, plan, maps, shared_limit);
  }
}

template <typename T, int kColumns>
gpu::Status LaunchHaloPairs(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                            const HaloMaps& maps, int shared_limit) {
  using Shape = HaloShape<T, HaloLayout::kPairs, false, kColumns, 1>;
  const int64_t blocks = int64_t{plan.column_tiles} * plan.blocks_of_kind;
  return gpu::LaunchSized<HaloPairKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes,
                                                 shared_limit - kHaloBarrierBytes, gemm, plan, maps.source);
}

template <typename T, int kColumns, int kGroupSteps>
gpu::Status LaunchHaloFold(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                           const HaloMaps& maps, int shared_limit) {
  using Shape = HaloShape<T, HaloLayout::kFolds, true, kColumns, kGroupSteps>;
  return gpu::LaunchSized<HaloFoldKernel<Shape>>(site, plan.blocks_of_kind, plan.teams * kTeamThreads, plan.bytes,
                                                 shared_limit - kHaloBarrierBytes, gemm, plan, maps.source);
}

// Launches the first of kColumns that holds a fold's columns.
template <typename T, int kGroupSteps, int kInstance = 0>
gpu::Status LaunchHaloFolds(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                            const HaloMaps& maps, int shared_limit) {
  constexpr int kColumns = kFoldColumns[kInstance];
  if constexpr (kInstance + 1 < std::size(kFoldColumns)) {
    if (plan.fold_columns > kColumns) {
      return LaunchHaloFolds<T, kGroupSteps, kInstance + 1>(site, gemm, plan, maps, shared_limit);
    }
  }
  return LaunchHaloFold<T, kColumns, kGroupSteps>(site, gemm, plan, maps, shared_limit);
}

template <typename T>
gpu::Status LaunchHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan,
                       const HaloMaps& maps, int shared_limit) {
  if (HasFolds(gemm)) {
    switch (plan.steps_of_group) {
      case 1:
        return LaunchHaloFolds<T, 1>(site, gemm, plan, maps, shared_limit);
      case 2:
        return LaunchHaloFolds<T, 2>(site, gemm, plan, maps, shared_limit);
      default:
        return LaunchHaloFolds<T, 4>(site, gemm, plan, maps, shared_limit);
    }
  }
  if (HasPairs(gemm)) {
    return HaloColumns(gemm) == 32 ? LaunchHaloPairs<T, 32>(site, gemm, plan, maps, shared_limit)
                                   : LaunchHaloPairs<T, 64>(site, gemm, plan, maps, shared_limit);
  }
  return gemm.transposed ? LaunchHaloLines<T, true>(site, gemm, plan, maps, shared_limit)
                         : LaunchHaloLines<T, false>(site, gemm, plan, maps, shared_limit);
}

}  // namespace knnconv::hopper
