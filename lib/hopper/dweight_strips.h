// Strips of x for weight gradients of a dense convolution: boxes of pixels that all taps of a kernel row read.
//
// A strip holds a step's positions and those behind them that the last tap reaches, each a line of shared memory; tap t
// reads it t * dilation lines further on. Positions run along the lines of g, from one to the next. Between two lines
// come positions without pixels, as many as it takes that what a tap reads beyond its own line of x is zero; there g is
// zero too. The zeros behind a line of x may be those before the next one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/dweight.h"
#include "hopper/dweight_tiles.h"

namespace knnconv::hopper {

inline constexpr int kStripTaps = 3;  // of a kernel row, where strips serve it

// Lines from a strip's first to the one behind its last.
inline int32_t StripLines(const gpu::DenseTaps& taps) { return kStep + (kStripTaps - 1) * taps.dilation[1]; }

// Positions from one line of g to the next, the fewest that do: either a line's taps stay in front of the next line, or
// those that reach into it find zeros in both.
inline int32_t StripPitch(const gpu::DenseTaps& taps) {
  const int32_t apart = taps.out_size[1] + (kStripTaps - 1) * taps.dilation[1];
  const int32_t shared = std::max({taps.out_size[1], taps.in_size[1] + taps.padding[1], apart - taps.padding[1]});
  return std::min(apart, shared);
}

// How far a line of strips goes beyond the last pixel of x, and its positions beyond the last one of g.
inline int32_t StripUpper(const gpu::DenseTaps& taps) { return StripPitch(taps) - taps.padding[1] - taps.in_size[1]; }
inline int32_t CotangentUpper(const gpu::DenseTaps& taps) { return StripPitch(taps) - taps.out_size[1]; }

// Whether taps can share strips, and positions without pixels are not the most.
inline bool AreStripsDense(const gpu::DenseTaps& taps) {
  return taps.kernel_width == kStripTaps && taps.stride[1] == 1 && StripLines(taps) <= kMostStripLines &&
         StripPitch(taps) <= 2 * taps.out_size[1];
}

}  // namespace knnconv::hopper
