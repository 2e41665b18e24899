// Classes of a window's pixels as the copy engine sees them: corners of bounding boxes, and offsets of taps from there.
#pragma once

#include <cstdint>

#include "gpu/tap_gemm.h"

namespace knnconv::hopper {

inline constexpr int kMaxClasses = 9;  // of pixels: dinput with strides up to 3

// Taps of a class of pixels along one dimension: tap i has slot `slot + i * slot_step` of the kernel's line and reads
// `offset + i * offset_step` pixels beyond the corner of the class, where offsets are at least 0.
struct PixelLine {
  int32_t slot, slot_step, count, offset, offset_step;
};

// Pixels of the result with a common list of taps, as in gpu::WindowTaps; [0] is vertical.
struct PixelClass {
  int32_t residue[2], size[2];
  int32_t corner[2];  // the source pixel that offset 0 of the class's first pixel reads
  PixelLine line[2];
};

// All classes of a window; none where there is no window, or where the copy engine's limits are passed.
struct PixelClasses {
  int count = 0;
  PixelClass of[kMaxClasses];
};

// The classes of `window`, or none with more classes than a plan holds, strides above 8, corners outside [-128, 127] or
// offsets above 255.
PixelClasses PixelClassesOf(const gpu::WindowTaps& window);

// Of a dimension: source pixels from one pixel of a class to the next, and how far the last one's corner lies beyond
// the source's last pixel.
int PixelStep(const gpu::WindowTaps& window, int dimension);
int UpperCorner(const gpu::WindowTaps& window, const PixelClass& pixels, int dimension);

}  // namespace knnconv::hopper
