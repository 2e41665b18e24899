// Defines LaunchTapPlan; included by the sources that instantiate it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "hopper/extra_kernel.h"
#include "hopper/tap_kernel.h"
#include "hopper/tap_launch.h"

namespace knnconv::hopper {
namespace internal {

// Whether a plan, whose row_of_blocks is known, has tiles sorted by their lists. Sorting costs up to 2 microseconds of
// each block.
template <typename Shape>
bool Sorts(const TapPlan& plan, int multiprocessors) {
  const bool is_short = plan.gemm.depth <= kStepDepth && plan.tiles <= 4 * multiprocessors;
  return plan.gemm.kind == gpu::Taps::kSources && plan.gemm.nodes <= Shape::kSortedNodes && !is_short &&
         plan.groups.count == 1 && plan.tiles > plan.row_of_blocks;
}

inline void SetRow(int64_t blocks, TapPlan* plan) {
  plan->row_of_blocks = static_cast<int32_t>(blocks);
  plan->by_row_of_blocks = gpu::Divisor(static_cast<uint32_t>(blocks));
}

template <typename Shape, auto kKernel, int kSharedBytes>
gpu::Status LaunchKernel(const gpu::LaunchSite& site, TapPlan plan, int multiprocessors) {
  // One tile for each multiprocessor, or each has as many blocks as it can.
  const int64_t at_once = int64_t{multiprocessors} * Shape::kBlocksOfMultiprocessor;
  const int64_t blocks = plan.tiles <= multiprocessors ? plan.tiles : at_once;
  SetRow(std::min<int64_t>(blocks, multiprocessors), &plan);
  plan.sorts = Sorts<Shape>(plan, multiprocessors);
  return gpu::Launch<kKernel, kSharedBytes>(site, blocks, Shape::kThreads, plan);
}

// A launch of clusters of Shape::kSplit blocks.
template <typename Shape>
struct ClusterLaunch {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};

  ClusterLaunch(const gpu::LaunchSite& site, int64_t clusters) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = Shape::kSplit;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(clusters * Shape::kSplit));
    config.blockDim = dim3(Shape::kThreads);
    config.dynamicSmemBytes = Shape::kSharedBytes;
    config.stream = site.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
};

// The same for tiles that the blocks of a cluster share. As many clusters as find room at once, which depends on where
// a device has its multiprocessors; results do not.
template <typename Shape, auto kKernel>
gpu::Status LaunchSplit(const gpu::LaunchSite& site, TapPlan plan, int multiprocessors) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices] = {};
  KNNCONV_GPU_RETURN_IF_ERROR((gpu::Launch<kKernel, Shape::kSharedBytes>(site, 0, Shape::kThreads, plan)));
  int at_once = site.device < kDevices ? known[site.device].load(std::memory_order_relaxed) : 0;
  if (at_once == 0) {
    const ClusterLaunch<Shape> one(site, 1);
    KNNCONV_GPU_CHECK(cudaOccupancyMaxActiveClusters(&at_once, reinterpret_cast<const void*>(kKernel), &one.config));
    if (at_once == 0) return {cudaErrorInvalidConfiguration, __FILE__, __LINE__, "a cluster finds room"};
    if (site.device < kDevices) known[site.device].store(at_once, std::memory_order_relaxed);
  }
  if (site.prepare) return {};
  const int64_t row = std::min<int64_t>({plan.tiles, at_once, multiprocessors / Shape::kSplit});
  SetRow(row, &plan);
  plan.sorts = Sorts<Shape>(plan, multiprocessors);
  const ClusterLaunch<Shape> launch(site, plan.tiles == row ? row : at_once / row * row);
  KNNCONV_GPU_CHECK(cudaLaunchKernelEx(&launch.config, kKernel, plan));
  return {};
}

// The same for clusters of up to two tiles, of which none has more; those of the longest lists have one.
template <typename Shape, auto kKernel>
gpu::Status LaunchPairs(const gpu::LaunchSite& site, TapPlan plan, int multiprocessors) {
  KNNCONV_GPU_RETURN_IF_ERROR((gpu::Launch<kKernel, Shape::kSharedBytes>(site, 0, Shape::kThreads, plan)));
  if (site.prepare) return {};
  const int64_t clusters = PairClusters(plan.tiles, Shape::kColumns, multiprocessors / Shape::kSplit);
  SetRow(clusters, &plan);
  plan.sorts = plan.gemm.nodes <= Shape::kSortedNodes && plan.groups.count == 1;
  const ClusterLaunch<Shape> launch(site, clusters);
  KNNCONV_GPU_CHECK(cudaLaunchKernelEx(&launch.config, kKernel, plan));
  return {};
}

template <typename Shape>
gpu::Status LaunchShape(const gpu::LaunchSite& site, const TapPlan& plan, int multiprocessors) {
  if constexpr (Shape::kTiles > 1) {
    return LaunchPairs<Shape, TapKernel<Shape>>(site, plan, multiprocessors);
  } else if constexpr (Shape::kSplit > 1) {
    return LaunchSplit<Shape, TapKernel<Shape>>(site, plan, multiprocessors);
  } else {
    return LaunchKernel<Shape, TapKernel<Shape>, Shape::kSharedBytes>(site, plan, multiprocessors);
  }
}

template <typename T, int kColumns>
gpu::Status LaunchExtra(const gpu::LaunchSite& site, const TapPlan& plan, int multiprocessors) {
  using Shape = ExtraShape<T, kColumns>;
  return LaunchKernel<Shape, ExtraKernel<Shape>, ExtraPipe<Shape>::kSharedBytes>(site, plan, multiprocessors);
}

}  // namespace internal

template <typename T, bool kTransposed>
gpu::Status LaunchTapPlan(const gpu::LaunchSite& site, const TapPlan& plan, const TileForm& form, int multiprocessors) {
  using internal::LaunchExtra, internal::LaunchShape;
  if constexpr (kTransposed) {
    if (form.source == Source::kExtra) {
      return form.columns == 64 ? LaunchExtra<T, 64>(site, plan, multiprocessors)
                                : LaunchExtra<T, 128>(site, plan, multiprocessors);
    }
    if (form.tiles == 2) {
      switch (form.columns) {
        case 128:
          return LaunchShape<TapShape<T, true, Source::kBoxes, 128, 2, 128, false, 2, 2>>(site, plan, multiprocessors);
        case 192:
          return LaunchShape<TapShape<T, true, Source::kBoxes, 128, 2, 192, false, 2, 2>>(site, plan, multiprocessors);
        default:
          return LaunchShape<TapShape<T, true, Source::kBoxes, 128, 2, 256, false, 2, 2>>(site, plan, multiprocessors);
      }
    }
    if (form.split == 2) {
      return LaunchShape<TapShape<T, true, Source::kBoxes, 128, 1, 128, false, 2>>(site, plan, multiprocessors);
    }
    if (form.source == Source::kBoxes && form.columns == 96) {
      return LaunchShape<TapShape<T, true, Source::kBoxes, 128, 1, 96>>(site, plan, multiprocessors);
    }
  } else if (form.split == 2) {
    return LaunchShape<TapShape<T, false, Source::kBoxes, 128, 2, 256, false, 2>>(site, plan, multiprocessors);
  } else if (form.source == Source::kRows) {
    switch (form.columns) {
      case 64:
        return LaunchShape<TapShape<T, false, Source::kRows, 128, 2, 64>>(site, plan, multiprocessors);
      case 128:
        return LaunchShape<TapShape<T, false, Source::kRows, 128, 2, 128>>(site, plan, multiprocessors);
      default:
        return LaunchShape<TapShape<T, false, Source::kRows, 128, 2, 256>>(site, plan, multiprocessors);
    }
  }
  if (IsOfPixels(form)) {
    return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 192, 3, 256>>(site, plan, multiprocessors);
  }
  if (form.rows == 2 * kBoxRows) {
    return form.columns == 64
               ? LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 256, 2, 64>>(site, plan, multiprocessors)
               : LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 256, 2, 128>>(site, plan, multiprocessors);
  }
  switch (form.columns) {
    case 64:
      return form.resident
                 ? LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 128, 1, 64, true>>(site, plan, multiprocessors)
                 : LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 128, 1, 64>>(site, plan, multiprocessors);
    case 128:
      return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 128, 1, 128>>(site, plan, multiprocessors);
    case 192:
      return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 128, 2, 192>>(site, plan, multiprocessors);
    default:
      return LaunchShape<TapShape<T, kTransposed, Source::kBoxes, 128, 2, 256>>(site, plan, multiprocessors);
  }
}

}  // namespace knnconv::hopper
