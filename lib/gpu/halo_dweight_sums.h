// Sums of weight gradients that stay in a thread's registers until the end: how they are written, and the bias
// gradient's.
#pragma once

#include <cstdint>

#include "gpu/matrix_ops.h"

namespace knnconv::gpu {

// Two elements of value 1.
template <typename T>
KNNCONV_DEVICE uint32_t PairOfOnes();
template <>
KNNCONV_DEVICE uint32_t PairOfOnes<Half>() {
  return 0x3c003c00u;
}
template <>
KNNCONV_DEVICE uint32_t PairOfOnes<BFloat>() {
  return 0x3f803f80u;
}

// Adds the columns of b[16, 8], given as the lane's registers: the 16 rows in the tensor cores, to what was before by
// an ordinary addition. Each quad's lane t has columns 2t and 2t + 1.
template <typename T>
KNNCONV_DEVICE void AddColumns(float (&columns)[2], uint32_t b0, uint32_t b1) {
  const uint32_t ones[4] = {PairOfOnes<T>(), PairOfOnes<T>(), PairOfOnes<T>(), PairOfOnes<T>()};
  float sums[4] = {};
  Multiply16x8<T>(sums, ones, b0, b1);
  columns[0] += sums[0];
  columns[1] += sums[1];
}

// Writes two neighbouring partial sums, of which `count` exist, or adds them to what is there.
KNNCONV_DEVICE void StorePartials(float* to, float first, float second, int count, bool add, bool vector) {
  if (vector && count >= 2) {
    float2* const at = reinterpret_cast<float2*>(to);
    *at = add ? make_float2(at->x + first, at->y + second) : make_float2(first, second);
  } else {
    if (count >= 1) to[0] = add ? to[0] + first : first;
    if (count >= 2) to[1] = add ? to[1] + second : second;
  }
}

}  // namespace knnconv::gpu
