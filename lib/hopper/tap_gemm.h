// Forward and dinput on Hopper (compute capability 9.0), dense and KNN, by TMA and wgmma.
#pragma once

#include "gpu/launch.h"
#include "hopper/tap_choice.h"

namespace knnconv::hopper {

// Runs a `gemm` in a form that ChooseForm gives, forced or not, or another tile of the same classes.
gpu::Status RunTapGemm(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device,
                       const TapForm& form);

}  // namespace knnconv::hopper
