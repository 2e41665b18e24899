// Forward and dinput of dense convolutions with few channels: when the kernels of halo_kernel.h run, and their launch.
#pragma once

#include "gpu/device.h"
#include "gpu/halo_launch.h"

namespace knnconv::gpu {

// Whether the halo kernels are to compute `gemm`: where they can if `forced`, else where they are expected to be the
// fastest, too; and how they are laid out.
bool ChooseHalo(const TapGemm& gemm, const Device& device, bool forced, HaloPlan* plan);

inline Status RunHalo(const LaunchSite& site, const TapGemm& gemm, const Device& device, const HaloPlan& plan) {
  return gemm.compute_type == Element::kF16 ? LaunchHalo<Half>(site, gemm, plan, device.shared_bytes)
                                            : LaunchHalo<BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::gpu
