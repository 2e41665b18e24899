// A dense convolution of few channels with its operands on the device, and sums of its taps in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda_check.h"
#include "gpu/dweight.h"
#include "gpu/tap_gemm.h"

namespace check {

using namespace knnconv::gpu;

// Of the forward operation; [0] is vertical.
struct Window {
  int batch, in[2], channels, columns, kernel[2], stride[2], padding[2], dilation[2], out[2];

  int64_t x_size() const { return int64_t{batch} * in[0] * in[1] * channels; }
  int64_t y_size() const { return int64_t{batch} * out[0] * out[1] * columns; }
  int64_t weight_size() const { return int64_t{kernel[0]} * kernel[1] * channels * columns; }
};

inline Window Square(int batch, int size, int channels, int columns, int kernel, int stride, int padding) {
  const int out = (size + 2 * padding - kernel) / stride + 1;
  return {batch, {size, size}, channels, columns, {kernel, kernel}, {stride, stride}, {padding, padding}, {1, 1},
          {out, out}};
}

inline TapGemm GemmOf(const Window& w, bool transposed) {
  TapGemm gemm{};
  gemm.kind = Taps::kWindow;
  gemm.transposed = gemm.window.transposed = transposed;
  gemm.batch = w.batch;
  gemm.slots = w.kernel[0] * w.kernel[1];
  const int64_t x = int64_t{w.in[0]} * w.in[1], y = int64_t{w.out[0]} * w.out[1];
  gemm.nodes = transposed ? x : y;
  gemm.source_rows = transposed ? y : x;
  gemm.depth = transposed ? w.columns : w.channels;
  gemm.columns = transposed ? w.channels : w.columns;
  for (int d = 0; d < 2; ++d) {
    gemm.window.kernel[d] = w.kernel[d];
    gemm.window.stride[d] = w.stride[d];
    gemm.window.padding[d] = w.padding[d];
    gemm.window.dilation[d] = w.dilation[d];
    gemm.window.source_size[d] = transposed ? w.out[d] : w.in[d];
    gemm.window.out_size[d] = transposed ? w.in[d] : w.out[d];
  }
  return gemm;
}

inline DenseTaps TapsOf(const Window& w) {
  DenseTaps taps{};
  taps.kernel_width = w.kernel[1];
  for (int d = 0; d < 2; ++d) {
    taps.in_size[d] = w.in[d];
    taps.out_size[d] = w.out[d];
    taps.stride[d] = w.stride[d];
    taps.padding[d] = w.padding[d];
    taps.dilation[d] = w.dilation[d];
  }
  return taps;
}

__device__ inline double ReadAs(const void* from, Element type, Element compute, int64_t i) {
  const float value = LoadElement(from, type, i);
  return type == compute ? value : compute == Element::kF16 ? ToFloat(FromFloat<Half>(value))
                                                            : ToFloat(FromFloat<BFloat>(value));
}

// The input row that tap `f` of output pixel (i, j) reads, or -1.
__device__ inline int64_t RowOf(const Window& w, int64_t image, int i, int j, int f) {
  const int h = i * w.stride[0] + f / w.kernel[1] * w.dilation[0] - w.padding[0];
  const int v = j * w.stride[1] + f % w.kernel[1] * w.dilation[1] - w.padding[1];
  if (h < 0 || h >= w.in[0] || v < 0 || v >= w.in[1]) return -1;
  return (image * w.in[0] + h) * w.in[1] + v;
}

struct Operands {
  const void *x, *weight, *g;
  const float* bias;
  Element x_type, type;  // of x, and of products
};

// Results of one kind and sums of absolute products, for result number `i`.
struct Sum {
  double exact = 0, absolute = 0;

  __device__ void Add(double value) {
    exact += value;
    absolute += fabs(value);
  }
};

__device__ inline Sum Forward(const Window& w, const Operands& a, int64_t i) {
  const int o = i % w.columns, v = i / w.columns % w.out[1], h = i / w.columns / w.out[1] % w.out[0];
  Sum sum;
  if (a.bias != nullptr) sum.Add(a.bias[o]);
  for (int f = 0; f < w.kernel[0] * w.kernel[1]; ++f) {
    const int64_t row = RowOf(w, i / w.columns / w.out[1] / w.out[0], h, v, f);
    for (int c = 0; row >= 0 && c < w.channels; ++c) {
      sum.Add(ReadAs(a.x, a.x_type, a.type, row * w.channels + c) *
              LoadElement(a.weight, a.type, (int64_t{f} * w.channels + c) * w.columns + o));
    }
  }
  return sum;
}

__device__ inline Sum Dinput(const Window& w, const Operands& a, int64_t i) {
  const int c = i % w.channels, v = i / w.channels % w.in[1], h = i / w.channels / w.in[1] % w.in[0];
  const int64_t image = i / w.channels / w.in[1] / w.in[0];
  Sum sum;
  for (int f = 0; f < w.kernel[0] * w.kernel[1]; ++f) {
    const int y = h + w.padding[0] - f / w.kernel[1] * w.dilation[0];
    const int z = v + w.padding[1] - f % w.kernel[1] * w.dilation[1];
    if (y < 0 || z < 0 || y % w.stride[0] != 0 || z % w.stride[1] != 0) continue;
    if (y / w.stride[0] >= w.out[0] || z / w.stride[1] >= w.out[1]) continue;
    const int64_t row = (image * w.out[0] + y / w.stride[0]) * w.out[1] + z / w.stride[1];
    for (int o = 0; o < w.columns; ++o) {
      sum.Add(double{LoadElement(a.g, a.type, row * w.columns + o)} *
              LoadElement(a.weight, a.type, (int64_t{f} * w.channels + c) * w.columns + o));
    }
  }
  return sum;
}

// dw, and db behind it.
__device__ inline Sum Gradient(const Window& w, const Operands& a, int64_t i) {
  const int o = i % w.columns, c = i / w.columns % w.channels, f = i / w.columns / w.channels;
  const bool is_bias = f >= w.kernel[0] * w.kernel[1];
  Sum sum;
  for (int64_t p = 0; p < int64_t{w.batch} * w.out[0] * w.out[1]; ++p) {
    const double g = LoadElement(a.g, a.type, p * w.columns + o);
    if (is_bias) {
      sum.Add(g);
      continue;
    }
    const int64_t row = RowOf(w, p / w.out[1] / w.out[0], p / w.out[1] % w.out[0], p % w.out[1], f);
    if (row >= 0) sum.Add(g * ReadAs(a.x, a.x_type, a.type, row * w.channels + c));
  }
  return sum;
}

}  // namespace check
