// Weight gradients on Hopper (compute capability 9.0), dense and KNN, by TMA and wgmma.
#pragma once

#include "gpu/dweight.h"
#include "gpu/launch.h"

namespace knnconv::hopper {

// Whether Hopper's kernels can run a call on this device: x and g of one 16-bit type, channels and columns multiples of
// 8, no groups, partial sums with room, and a dense convolution within the copy engine's reach.
gpu::Status TakesDweight(int ordinal, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, bool* takes);
gpu::Status TakesDweight(int ordinal, const gpu::Dweight& dweight, const gpu::SlotTaps& taps, bool* takes);
gpu::Status TakesDweight(int ordinal, const gpu::Dweight& dweight, const gpu::DenseTaps& taps, bool* takes);

// Whether they are expected to be the faster ones, by shape. Only where they take the call.
bool PaysDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps);
bool PaysDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps);
bool PaysDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps);

// Runs a call that they take. `tile` forces one of the tiles in dweight_launch.h; -1 lets the shape decide.
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::ColumnTaps& taps,
                       int tile = -1);
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::SlotTaps& taps,
                       int tile = -1);
gpu::Status RunDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::DenseTaps& taps,
                       int tile = -1);

}  // namespace knnconv::hopper
