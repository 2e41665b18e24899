// Forward and dinput on Hopper (compute capability 9.0), dense and KNN, by TMA and wgmma.
#pragma once

#include "gpu/tap_gemm.h"

namespace knnconv::hopper {

// Whether Hopper's kernels can run `gemm` on this device.
gpu::Status Takes(int device, const gpu::TapGemm& gemm, bool* takes);

// Whether they are expected to be the faster ones, by shape. Only where Takes.
bool Pays(const gpu::TapGemm& gemm);

// Runs a `gemm` that Takes. `wanted` may force the tile's rows (128, 256) and columns (64, 128, 192, 256).
gpu::Status RunTapGemm(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::TileChoice& wanted);

}  // namespace knnconv::hopper
