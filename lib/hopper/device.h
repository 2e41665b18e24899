// Which devices run the code of this folder: machine code of sm_90a runs on compute capability 9.0 alone.
#pragma once

#include "gpu/device.h"

namespace knnconv::hopper {

// Shared memory of a multiprocessor, of which each block takes as much more than it has; and the most that one can have.
inline constexpr int kMultiprocessorBytes = 228 << 10, kBytesBesideBlock = 1024;
inline constexpr int kMostBlockBytes = kMultiprocessorBytes - kBytesBesideBlock;

inline bool IsHopper(const gpu::Device& device) { return device.capability == 90; }

}  // namespace knnconv::hopper
