// The window attributes of a dense operation, and the taps of a TapGemm that they make.
#pragma once

#include "gpu/operands.h"

namespace knnconv::gpu {

// Pixels; kernels compute their positions in 32 bits. Python leaves windows that reach further to XLA (_window.py).
inline constexpr int64_t kReach = int64_t{1} << 29;

// An attribute of two numbers, at least `least` and less than kReach.
inline ffi::Error ReadPair(const ffi::Dictionary& attributes, const char* name, int64_t least, int32_t (&into)[2]) {
  const auto given = attributes.get<ffi::Span<const int64_t>>(name);
  if (given.has_error()) return given.error();
  KNNCONV_CHECK(given->size() == 2);
  for (int d = 0; d < 2; ++d) {
    KNNCONV_CHECK((*given)[d] >= least && (*given)[d] < kReach);
    into[d] = static_cast<int32_t>((*given)[d]);
  }
  return ffi::Error::Success();
}

// Spatial sizes are the two dimensions before the channels; the weight's, the two before its matrices.
inline ffi::Error SetWindow(const ffi::Dictionary& attributes, Dims source, Dims weight, Dims out, bool transposed,
                            TapGemm* gemm) {
  WindowTaps& window = gemm->window;
  gemm->kind = Taps::kWindow;
  window.transposed = transposed;
  KNNCONV_RETURN_IF_ERROR(ReadPair(attributes, "stride", 1, window.stride));
  KNNCONV_RETURN_IF_ERROR(ReadPair(attributes, "padding", -kReach, window.padding));
  KNNCONV_RETURN_IF_ERROR(ReadPair(attributes, "dilation", 1, window.dilation));
  for (int d = 0; d < 2; ++d) {
    const int64_t in = source[source.size() - 3 + d], kernel = weight[weight.size() - 4 + d];
    const int64_t to = out[out.size() - 3 + d];
    KNNCONV_CHECK(in < kReach && to * window.stride[d] < kReach && kernel * window.dilation[d] < kReach);
    window.source_size[d] = static_cast<int32_t>(in);
    window.out_size[d] = static_cast<int32_t>(to);
    window.kernel[d] = static_cast<int32_t>(kernel);
  }
  return ffi::Error::Success();
}

}  // namespace knnconv::gpu
