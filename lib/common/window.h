// Windows of a dense convolution as taps: which source pixels add to an output pixel, and through which slot.
//
// Output pixels fall into residue classes; all pixels of a class have the same list of taps. In forward there is one
// class: output (i, j) reads source (i * stride + offset). In dinput the output is dx and the source g: pixel
// i = residue + i' * stride reads g at i' + offset, where the offset exists for the taps that reach a whole g pixel.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace knnconv {

struct Window {
  std::array<int64_t, 2> stride, padding, dilation, kernel;
};

struct WindowTap {
  int64_t slot, dh, dw;
};

struct WindowClass {
  std::array<int64_t, 2> residue;  // output pixel (p, q) of the class is (residue + (p, q) * spacing)
  std::array<int64_t, 2> size;     // pixels of the class
  std::vector<WindowTap> taps;     // slots ascending
};

struct WindowPlan {
  std::array<int64_t, 2> spacing;  // of a class's pixels in the output
  std::array<int64_t, 2> step;     // of the source per pixel of the class
  std::vector<WindowClass> classes;
};

inline WindowPlan ForwardPlan(const Window& w, std::array<int64_t, 2> output) {
  WindowClass all{{0, 0}, output, {}};
  for (int64_t fh = 0; fh < w.kernel[0]; ++fh) {
    for (int64_t fw = 0; fw < w.kernel[1]; ++fw) {
      all.taps.push_back({fh * w.kernel[1] + fw, fh * w.dilation[0] - w.padding[0], fw * w.dilation[1] - w.padding[1]});
    }
  }
  return {{1, 1}, w.stride, {all}};
}

inline WindowPlan DinputPlan(const Window& w, std::array<int64_t, 2> output) {
  // Taps of one dimension for one residue: (f, offset) with residue + padding - f * dilation = offset * stride.
  auto reach = [&](int dim, int64_t residue) {
    std::vector<std::array<int64_t, 2>> taps;
    for (int64_t f = 0; f < w.kernel[dim]; ++f) {
      const int64_t distance = residue + w.padding[dim] - f * w.dilation[dim];
      if (distance % w.stride[dim] == 0) taps.push_back({f, distance / w.stride[dim]});
    }
    return taps;
  };
  auto pixels = [&](int dim, int64_t residue) { return (output[dim] - residue + w.stride[dim] - 1) / w.stride[dim]; };
  WindowPlan plan{w.stride, {1, 1}, {}};
  for (int64_t rh = 0; rh < w.stride[0] && rh < output[0]; ++rh) {
    const auto taps_h = reach(0, rh);
    for (int64_t rw = 0; rw < w.stride[1] && rw < output[1]; ++rw) {
      const auto taps_w = reach(1, rw);
      WindowClass residue{{rh, rw}, {pixels(0, rh), pixels(1, rw)}, {}};
      for (const auto& [fh, dh] : taps_h) {
        for (const auto& [fw, dw] : taps_w) residue.taps.push_back({fh * w.kernel[1] + fw, dh, dw});
      }
      plan.classes.push_back(std::move(residue));
    }
  }
  return plan;
}

}  // namespace knnconv
