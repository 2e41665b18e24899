// Classes of a window's pixels as the copy engine sees them: corners of bounding boxes, and offsets of taps from there.
#pragma once

#include <vector>

#include "hopper/tap_plan.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {

// The classes of `window`, or none where the copy engine's limits are passed: more classes than a plan holds, strides
// above 8, corners outside [-128, 127], offsets above 255.
std::vector<PixelClass> PixelClassesOf(const gpu::WindowTaps& window);

// The source of a kWindow `gemm`, for the pixels of a class; a copy takes `pixels` of them.
PixelMap PixelMapOf(const gpu::TapGemm& gemm, const PixelClass& pixels, int count);

}  // namespace knnconv::hopper
