#include "hopper/pixel_classes.h"

#include <algorithm>

namespace knnconv::hopper {
namespace {

constexpr int kMaxStep = 8, kMaxOffset = 255, kLeastCorner = -128, kMostCorner = 127;

// Fills a dimension of `pixels`, whose residue is set.
void SetLine(const gpu::WindowTaps& window, int d, PixelClass* pixels) {
  PixelLine line{};
  if (!window.transposed) {
    pixels->size[d] = window.out_size[d];
    pixels->corner[d] = -window.padding[d];
    line = {0, 1, window.kernel[d], 0, window.dilation[d]};
  } else {
    const int stride = window.stride[d], residue = pixels->residue[d];
    pixels->size[d] = (window.out_size[d] - residue + stride - 1) / stride;
    // Tap f reads (residue + padding - f * dilation) / stride, where that is whole; it decreases with f.
    int first_offset = 0, last_offset = 0;
    for (int f = 0; f < window.kernel[d]; ++f) {
      const int distance = residue + window.padding[d] - f * window.dilation[d];
      if (distance % stride != 0) continue;
      last_offset = distance / stride;
      if (line.count == 0) {
        line.slot = f;
        first_offset = last_offset;
      } else if (line.count == 1) {
        line.slot_step = f - line.slot;
        line.offset_step = last_offset - first_offset;
      }
      ++line.count;
    }
    pixels->corner[d] = last_offset;
    line.offset = first_offset - last_offset;
  }
  pixels->line[d] = line;
}

bool WithinLimits(const gpu::WindowTaps& window, const PixelClass& pixels) {
  for (int d = 0; d < 2; ++d) {
    const PixelLine& line = pixels.line[d];
    const int lower = pixels.corner[d], upper = UpperCorner(window, pixels, d);
    const int offset = std::max(line.offset, line.offset + (line.count - 1) * line.offset_step);
    if (std::min(lower, upper) < kLeastCorner || std::max(lower, upper) > kMostCorner) return false;
    if (offset > kMaxOffset || PixelStep(window, d) > kMaxStep) return false;
  }
  return true;
}

}  // namespace

int PixelStep(const gpu::WindowTaps& window, int dimension) {
  return window.transposed ? 1 : window.stride[dimension];
}

int UpperCorner(const gpu::WindowTaps& window, const PixelClass& pixels, int dimension) {
  return pixels.corner[dimension] + (pixels.size[dimension] - 1) * PixelStep(window, dimension) + 1 -
         window.source_size[dimension];
}

PixelClasses PixelClassesOf(const gpu::WindowTaps& window) {
  const int high = window.transposed ? std::min(window.stride[0], window.out_size[0]) : 1;
  const int wide = window.transposed ? std::min(window.stride[1], window.out_size[1]) : 1;
  PixelClasses classes;
  if (int64_t{high} * wide > kMaxClasses) return classes;
  for (int i = 0; i < high; ++i) {
    for (int j = 0; j < wide; ++j) {
      PixelClass pixels{};
      pixels.residue[0] = i;
      pixels.residue[1] = j;
      for (int d = 0; d < 2; ++d) SetLine(window, d, &pixels);
      if (!WithinLimits(window, pixels)) return {};
      classes.of[classes.count++] = pixels;
    }
  }
  return classes;
}

}  // namespace knnconv::hopper
