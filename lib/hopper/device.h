// Which devices run the code of this folder: machine code of sm_90a runs on compute capability 9.0 alone.
#pragma once

#include "gpu/device.h"

namespace knnconv::hopper {

inline bool IsHopper(const gpu::Device& device) { return device.capability == 90; }

}  // namespace knnconv::hopper
