// Staging of whole samples of few channels in shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/elements.h"

namespace knnconv::gpu {
namespace internal {

// A thread has kBatch rows' loads in flight. kDepth: depth, where it is known.
template <typename T, int kDepth, typename From>
KNNCONV_DEVICE void StageRows(const From* from, int rows, int all, int threads, char* to) {
  constexpr int kBatch = 8;
  static_assert(kDepth <= 4 && sizeof(T) == 2);
  union Row {
    uint2 bits;
    T channel[4];
    KNNCONV_DEVICE Row() : bits(make_uint2(0, 0)) {}
  };
#pragma unroll 1
  for (int first = threadIdx.x; first < all; first += kBatch * threads) {
    Row row[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * threads;
      if (at >= rows) continue;
#pragma unroll
      for (int c = 0; c < kDepth; ++c) {
        const From value = ReadOnly(from + at * kDepth + c);
        if constexpr (std::is_same_v<From, T>) {
          row[i].channel[c] = value;
        } else {
          row[i].channel[c] = FromFloat<T>(ToFloat(value));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * threads < all) reinterpret_cast<uint2*>(to)[first + i * threads] = row[i].bits;
    }
  }
}

template <typename T, typename From>
KNNCONV_DEVICE void StageRows(const From* from, int rows, int all, int depth, int threads, char* to) {
  switch (depth) {
    case 1:
      return StageRows<T, 1>(from, rows, all, threads, to);
    case 2:
      return StageRows<T, 2>(from, rows, all, threads, to);
    case 3:
      return StageRows<T, 3>(from, rows, all, threads, to);
    default:
      return StageRows<T, 4>(from, rows, all, threads, to);
  }
}

}  // namespace internal

// Sample number `sample` [source_rows, depth] of `source`, of up to 4 channels, 8 bytes a row in shared memory. Of the
// `all` rows there, those from `rows` on become zeros, and so do channels that there are not.
template <typename T>
KNNCONV_DEVICE void StageStemSample(const char* source, Element type, int64_t sample, int64_t source_rows, int rows,
                                    int all, int depth, int threads, char* to) {
  const int64_t at = sample * source_rows * depth;
  if (type == Element::kF32) {
    internal::StageRows<T>(reinterpret_cast<const float*>(source) + at, rows, all, depth, threads, to);
  } else {
    internal::StageRows<T>(reinterpret_cast<const T*>(source) + at, rows, all, depth, threads, to);
  }
}

}  // namespace knnconv::gpu
