// Weight gradients that the checks of their rules ask about.
#pragma once

#include "gpu/dweight.h"

namespace knnconv::gpu::check {

inline Dweight Gradient(int batch, int slots, int channels, int columns) {
  Dweight dweight{};
  dweight.x_type = dweight.g_type = dweight.dw_type = Element::kBF16;
  dweight.partial_elements = int64_t{1} << 23;
  dweight.batch = batch;
  dweight.slots = slots;
  dweight.channels = channels;
  dweight.columns = columns;
  return dweight;
}

inline DenseTaps Pixels(int size, int kernel = 3, int stride = 1) {
  DenseTaps taps{};
  taps.kernel_width = kernel;
  for (int d = 0; d < 2; ++d) {
    taps.in_size[d] = size;
    taps.out_size[d] = (size + stride - 1) / stride;
    taps.stride[d] = stride;
    taps.padding[d] = (kernel - 1) / 2;
    taps.dilation[d] = 1;
  }
  return taps;
}

inline ColumnTaps Neighbours(int sources, int rows, int neighbours) {
  return {{nullptr, nullptr, sources, rows, neighbours, neighbours, false}, {}};
}

inline SlotTaps Slots(int sources, int rows, int neighbours, int slots) {
  SlotTaps taps{};
  taps.table = {nullptr, nullptr, sources, rows, neighbours, slots, false};
  return taps;
}

inline GroupStrides Step(int64_t matrix) {
  GroupStrides strides;
  strides.step[0] = matrix;
  return strides;
}

inline GroupStrides Steps(int64_t first, int64_t second) {
  GroupStrides strides;
  strides.step[0] = first;
  strides.step[1] = second;
  return strides;
}

}  // namespace knnconv::gpu::check
