// The end of a strip: a thread's sums become its shares of two rows of the result (sample_kernel.h).
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "hopper/ptx.h"
#include "hopper/sample_launch.h"

namespace knnconv::hopper {

// What a thread has of a row: of each eight columns, two from 2 * (lane % 4) on.
using SampleValues = float[kSampleColumns / 4];

KNNCONV_DEVICE void WriteSampleFloats(float* out, const SampleValues& values, int columns) {
#pragma unroll
  for (int eight = 0; eight < kSampleColumns / 8; ++eight) {
    const int column = eight * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
    if (column >= columns) return;
    *reinterpret_cast<float2*>(out + column) = make_float2(values[2 * eight], values[2 * eight + 1]);
  }
}

// Two neighbouring lanes exchange pairs, so that the four of a row store 32 bytes that follow each other. Whole warps
// call.
template <typename T>
KNNCONV_DEVICE void WriteSamplePacked(T* out, const SampleValues& values, int columns, bool exists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_odd = lane % 2 != 0;
  const auto pack = [&](int eight) {
    struct alignas(4) Pair {
      T of[2];
    } pair = {{gpu::FromFloat<T>(values[2 * eight]), gpu::FromFloat<T>(values[2 * eight + 1])}};
    return reinterpret_cast<const uint32_t&>(pair);
  };
#pragma unroll
  for (int eight = 0; eight < kSampleColumns / 8; eight += 2) {
    const uint32_t first = pack(eight), second = pack(eight + 1);
    const uint32_t other = __shfl_xor_sync(kAllLanes, is_odd ? first : second, 1);
    const int column = (eight + lane % 2) * 8 + lane % 4 / 2 * 4;
    if (exists && column < columns) {
      *reinterpret_cast<uint2*>(out + column) = is_odd ? make_uint2(other, second) : make_uint2(first, other);
    }
  }
}

// out = round(sums + bias) of the nodes `first` and `first` + 8. `nearest`: of their sources.
template <typename T>
KNNCONV_DEVICE void WriteSampleRows(const SampleTask& task, const float* bias, int sample, int first,
                                    const uint32_t (&nearest)[2], const float (&sums)[kSampleColumns / 2]) {
  SampleValues values[2];
#pragma unroll
  for (int eight = 0; eight < kSampleColumns / 8; ++eight) {
    const float2 add = *reinterpret_cast<const float2*>(bias + eight * 8 + threadIdx.x % 4 * 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[i][2 * eight] = sums[4 * eight + 2 * i] + add.x;
      values[i][2 * eight + 1] = sums[4 * eight + 2 * i + 1] + add.y;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int node = first + 8 * i;
    if (task.zero_empty_rows && nearest[i] >= static_cast<uint32_t>(task.sources)) {
#pragma unroll
      for (float& value : values[i]) value = 0.0f;
    }
    const int64_t at = (int64_t{sample} * task.nodes + node) * task.columns;
    if (task.out_type != gpu::Element::kF32) {
      WriteSamplePacked(static_cast<T*>(task.out) + at, values[i], task.columns, node < task.nodes);
    } else if (node < task.nodes) {
      WriteSampleFloats(static_cast<float*>(task.out) + at, values[i], task.columns);
    }
  }
}

}  // namespace knnconv::hopper
