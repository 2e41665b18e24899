// Defines LaunchTapPlan; included by the sources that instantiate it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "hopper/cell_kernel.h"
#include "hopper/tap_kernel.h"
#include "hopper/tap_launch.h"

namespace knnconv::hopper {
namespace internal {

template <typename Shape, auto kKernel, int kSharedBytes>
gpu::Status LaunchKernel(const gpu::LaunchSite& site, TapPlan plan, int multiprocessors) {
  // One tile for each multiprocessor, or each has as many blocks as it can.
  const int64_t at_once = int64_t{multiprocessors} * Shape::kBlocksOfMultiprocessor;
  const int64_t blocks = plan.tiles <= multiprocessors ? plan.tiles : at_once;
  plan.row_of_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, multiprocessors));
  // Sorting costs 2 microseconds of each block.
  const bool is_short = plan.gemm.depth <= kStepDepth && plan.tiles <= 4 * multiprocessors;
  plan.sorts = plan.gemm.kind == gpu::Taps::kSources && plan.gemm.nodes <= Shape::kSortedNodes && !is_short &&
               plan.groups.count == 1;
  return gpu::Launch<kKernel, kSharedBytes>(site, blocks, Shape::kThreads, plan);
}

template <typename Shape>
gpu::Status LaunchShape(const gpu::LaunchSite& site, const TapPlan& plan, int multiprocessors) {
  return LaunchKernel<Shape, TapKernel<Shape>, Shape::kSharedBytes>(site, plan, multiprocessors);
}

template <int kColumns>
gpu::Status LaunchCells(const gpu::LaunchSite& site, const TapPlan& plan, int multiprocessors) {
  using Shape = CellShape<kColumns>;
  return LaunchKernel<Shape, CellKernel<Shape>, CellPipe<Shape>::kSharedBytes>(site, plan, multiprocessors);
}

}  // namespace internal

template <typename T, bool kTransposed>
gpu::Status LaunchTapPlan(const gpu::LaunchSite& site, const TapPlan& plan, const TileForm& form, int multiprocessors) {
  using internal::LaunchShape, internal::LaunchCells;
  if constexpr (kTransposed && std::is_same_v<T, gpu::BFloat>) {
    if (form.source == Source::kCells) {
      return form.columns == 64    ? LaunchCells<64>(site, plan, multiprocessors)
             : form.columns == 128 ? LaunchCells<128>(site, plan, multiprocessors)
                                   : LaunchCells<256>(site, plan, multiprocessors);
    }
  }
  if (form.source == Source::kRows) {
    switch (form.columns) {
      case 64:
        return LaunchShape<TapShape<T, kTransposed, Source::kRows, 1, 2, 64>>(site, plan, multiprocessors);
      case 128:
        return LaunchShape<TapShape<T, kTransposed, Source::kRows, 1, 2, 128>>(site, plan, multiprocessors);
      default:
        return LaunchShape<TapShape<T, kTransposed, Source::kRows, 1, 2, 256>>(site, plan, multiprocessors);
    }
  }
  if (form.rows == 2 * kBoxRows) {
    return form.columns == 64
               ? LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 2, 2, 64>>(site, plan, multiprocessors)
               : LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 2, 2, 128>>(site, plan, multiprocessors);
  }
  switch (form.columns) {
    case 64:
      return form.resident
                 ? LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 1, 1, 64, true>>(site, plan, multiprocessors)
                 : LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 1, 1, 64>>(site, plan, multiprocessors);
    case 128:
      return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 1, 1, 128>>(site, plan, multiprocessors);
    case 192:
      return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 1, 2, 192>>(site, plan, multiprocessors);
    default:
      return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 1, 2, 256>>(site, plan, multiprocessors);
  }
}

}  // namespace knnconv::hopper
