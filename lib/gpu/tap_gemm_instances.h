// Defines LaunchTapGemm; included by the sources that instantiate it.
#pragma once

#include "gpu/tap_gemm_kernel.h"
#include "gpu/tap_gemm_launch.h"

namespace knnconv::gpu {
namespace internal {

template <Staging kStaging, typename Shape>
Status LaunchShape(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch) {
  return Launch<TapGemmKernel<Shape, kStaging>, TapKernel<Shape, kStaging>::kSharedBytes>(
      site, launch.blocks, kTapThreads, gemm, grid, launch.vector_a, launch.vector_b);
}

template <Staging kStaging, typename T, bool kTransposed, int kRows>
Status LaunchRows(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch) {
  switch (launch.columns) {
    case 32:
      return LaunchShape<kStaging, TapShape<T, kRows, 32, kTransposed>>(site, gemm, grid, launch);
    case 64:
      return LaunchShape<kStaging, TapShape<T, kRows, 64, kTransposed>>(site, gemm, grid, launch);
    default:
      return LaunchShape<kStaging, TapShape<T, kRows, 128, kTransposed>>(site, gemm, grid, launch);
  }
}

}  // namespace internal

template <typename T, bool kTransposed>
Status LaunchTapGemm(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch) {
  using internal::LaunchRows;
  if constexpr (kCellsStage<T, kTransposed>) {
    if (launch.staging == Staging::kCells) {
      return LaunchRows<Staging::kCells, T, kTransposed, kRegisterStagedRows>(site, gemm, grid, launch);
    }
  }
  if (launch.staging == Staging::kAny) {
    return LaunchRows<Staging::kAny, T, kTransposed, kRegisterStagedRows>(site, gemm, grid, launch);
  }
  switch (launch.rows) {
    case 16:
      return LaunchRows<Staging::kAsync, T, kTransposed, 16>(site, gemm, grid, launch);
    case 64:
      return LaunchRows<Staging::kAsync, T, kTransposed, 64>(site, gemm, grid, launch);
    default:
      return LaunchRows<Staging::kAsync, T, kTransposed, 128>(site, gemm, grid, launch);
  }
}

}  // namespace knnconv::gpu
