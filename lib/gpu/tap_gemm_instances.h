// Defines LaunchTapGemm; included by the sources that instantiate it.
#pragma once

#include "gpu/tap_gemm_kernel.h"
#include "gpu/tap_gemm_launch.h"

namespace knnconv::gpu {
namespace internal {

// kRows 0: the tile whose operands are not both staged by asynchronous copies.
template <typename T, bool kTransposed, int kRows, int kColumns>
Status LaunchTile(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch) {
  constexpr bool kVector = kRows != 0;
  using Shape = TapShape<T, kVector ? kRows : kAnyStagedRows, kColumns, kTransposed>;
  return Launch<TapGemmKernel<Shape, kVector>, TapKernel<Shape, kVector>::kSharedBytes>(
      site, launch.blocks, kTapThreads, gemm, grid, launch.vector_a, launch.vector_b);
}

template <typename T, bool kTransposed, int kRows>
Status LaunchRows(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch) {
  switch (launch.columns) {
    case 32:
      return LaunchTile<T, kTransposed, kRows, 32>(site, gemm, grid, launch);
    case 64:
      return LaunchTile<T, kTransposed, kRows, 64>(site, gemm, grid, launch);
    default:
      return LaunchTile<T, kTransposed, kRows, 128>(site, gemm, grid, launch);
  }
}

}  // namespace internal

template <typename T, bool kTransposed>
Status LaunchTapGemm(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch) {
  if (!launch.asynchronous) return internal::LaunchRows<T, kTransposed, 0>(site, gemm, grid, launch);
  switch (launch.rows) {
    case 16:
      return internal::LaunchRows<T, kTransposed, 16>(site, gemm, grid, launch);
    case 64:
      return internal::LaunchRows<T, kTransposed, 64>(site, gemm, grid, launch);
    default:
      return internal::LaunchRows<T, kTransposed, 128>(site, gemm, grid, launch);
  }
}

}  // namespace knnconv::gpu
