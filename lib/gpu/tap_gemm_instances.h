// Defines LaunchTapGemm; included by the sources that instantiate it.
#pragma once

#include "gpu/tap_gemm_kernel.h"
#include "gpu/tap_gemm_launch.h"

namespace knnconv::gpu {
namespace internal {

// take(TapKernel), of the kernel that runs `launch`.
template <Staging kStaging, typename T, bool kTransposed, int kRows, typename Take>
auto TakeColumns(const TapLaunch& launch, const Take& take) {
  switch (launch.columns) {
    case 32:
      return take(TapKernel<TapShape<T, kRows, 32, kTransposed>, kStaging>());
    case 64:
      return take(TapKernel<TapShape<T, kRows, 64, kTransposed>, kStaging>());
    default:
      return take(TapKernel<TapShape<T, kRows, 128, kTransposed>, kStaging>());
  }
}

template <typename T, bool kTransposed, typename Take>
auto TakeKernel(const TapLaunch& launch, const Take& take) {
  if constexpr (kCellsStage<T, kTransposed>) {
    if (launch.staging == Staging::kCells) {
      return TakeColumns<Staging::kCells, T, kTransposed, kRegisterStagedRows>(launch, take);
    }
  }
  if (launch.staging == Staging::kAny) {
    return TakeColumns<Staging::kAny, T, kTransposed, kRegisterStagedRows>(launch, take);
  }
  switch (launch.rows) {
    case 16:
      return TakeColumns<Staging::kAsync, T, kTransposed, 16>(launch, take);
    case 64:
      return TakeColumns<Staging::kAsync, T, kTransposed, 64>(launch, take);
    default:
      return TakeColumns<Staging::kAsync, T, kTransposed, 128>(launch, take);
  }
}

}  // namespace internal

template <typename T, bool kTransposed>
Status LaunchTapGemm(const LaunchSite& site, const TapGemm& gemm, const TapLaunch& launch) {
  return internal::TakeKernel<T, kTransposed>(launch, [&](auto kernel) {
    using Kernel = decltype(kernel);
    return Launch<TapGemmKernel<typename Kernel::Shape, Kernel::kStaging>, Kernel::kSharedBytes>(
        site, launch.blocks, kTapThreads, gemm, launch.grid, launch.vector_a, launch.vector_b);
  });
}

}  // namespace knnconv::gpu
