// Weight gradients on Hopper (exactly compute capability 9.0): which calls its kernels take, and their launch.
//
// They take 16-bit x and g of one type with 48 channels and columns or more, both multiples of 8, and no groups: tables from a
// batch of 24 on, and dense convolutions within the copy engine's reach. All else is the portable kernels'.
#pragma once

#include "gpu/dweight.h"
#include "gpu/launch.h"

namespace knnconv::hopper {

bool TakesDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps);
bool TakesDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps);
bool TakesDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps);

// `tile` forces one of the tiles that exist (dweight_launch.h); -1 lets the shape decide.
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, int tile = -1);
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::SlotTaps& taps, int tile = -1);
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::DenseTaps& taps, int tile = -1);

}  // namespace knnconv::hopper
