// Staging of whole samples of few channels in shared memory.
#pragma once

#include <cstdint>

#include "gpu/divisor.h"
#include "gpu/elements.h"

namespace knnconv::gpu {
namespace internal {

// Elements are loaded 16 bytes of memory at a time, and go each to its row and channel. What lies before and after the
// sample in its first and last 16 bytes is not read.
template <typename T, int kPitch, int kBatch, typename From>
KNNCONV_DEVICE void StageElements(const From* from, int rows, int depth, const Divisor& by_depth, int threads,
                                  char* to) {
  constexpr int kUnit = 16 / sizeof(From);
  const int count = rows * depth;
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(From));
  union Unit {
    uint4 bits;
    From value[kUnit];
    KNNCONV_DEVICE Unit() : bits(make_uint4(0, 0, 0, 0)) {}
  };
#pragma unroll 1
  for (int first = threadIdx.x * kUnit - shift; first < count; first += kBatch * threads * kUnit) {
    Unit unit[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * threads * kUnit;
      if (at >= 0 && at + kUnit <= count) {
        unit[i].bits = ReadOnly(reinterpret_cast<const uint4*>(from + at));
      } else {
#pragma unroll
        for (int e = 0; e < kUnit; ++e) {
          if (at + e >= 0 && at + e < count) unit[i].value[e] = from[at + e];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int begin = first + i * threads * kUnit;
      const Divisor::Result row = by_depth.Divide(max(begin, 0));
      T* at = reinterpret_cast<T*>(to) + row.quotient * kPitch + row.remainder;
      int channel = row.remainder;
#pragma unroll
      for (int e = 0; e < kUnit; ++e) {
        if (begin + e < 0 || begin + e >= count) continue;
        *at++ = FromFloat<T>(ToFloat(unit[i].value[e]));
        if (++channel == depth) {
          at += kPitch - depth;
          channel = 0;
        }
      }
    }
  }
}

}  // namespace internal

// Sample number `sample` [rows, depth] of `source`, each row kPitch elements from the next in shared memory; what lies
// between is left as it is. A thread has kBatch loads in flight.
template <typename T, int kPitch, int kBatch>
KNNCONV_DEVICE void StageStemSource(const char* source, Element type, int64_t sample, int rows, int depth,
                                    const Divisor& by_depth, int threads, char* to) {
  const int64_t at = sample * rows * depth;
  if (type == Element::kF32) {
    const float* const from = reinterpret_cast<const float*>(source) + at;
    internal::StageElements<T, kPitch, kBatch>(from, rows, depth, by_depth, threads, to);
  } else {
    const T* const from = reinterpret_cast<const T*>(source) + at;
    internal::StageElements<T, kPitch, kBatch>(from, rows, depth, by_depth, threads, to);
  }
}

}  // namespace knnconv::gpu
