// 16-bit element types of our own, for HIP, whose headers' types differ between versions, and for plain C++, which has
// none. Included by vendor.h.
#pragma once

#define KNNCONV_SOFT_ELEMENTS 1

#include <cmath>
#include <cstdint>
#include <cstring>

namespace knnconv::gpu {

struct Half {
  uint16_t bits;
};

struct BFloat {
  uint16_t bits;
};

#if defined(KNNCONV_KERNELS)

namespace soft {

#if defined(KNNCONV_PLAIN)
#define KNNCONV_SOFT inline
#else
#define KNNCONV_SOFT __device__ inline
#endif

KNNCONV_SOFT uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

KNNCONV_SOFT float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Nearest, ties to even; NaN stays NaN.
KNNCONV_SOFT BFloat RoundToBFloat(float value) {
  const uint32_t bits = BitsOf(value);
  if (value != value) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

KNNCONV_SOFT float ToFloat(BFloat value) { return FromBits(static_cast<uint32_t>(value.bits) << 16); }

#if defined(KNNCONV_PLAIN)

inline Half RoundToHalf(float value) {
  const uint32_t bits = BitsOf(value), sign = bits >> 16 & 0x8000;
  uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (size >= BitsOf(65520.0f)) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (size < BitsOf(0x1p-14f)) {  // subnormal: a whole number of 2^-24
    return {static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(FromBits(size) * 0x1p24f)))};
  }
  size += 0xfff + (size >> 13 & 1);
  return {static_cast<uint16_t>(sign | (size - (uint32_t{127 - 15} << 23)) >> 13)};
}

inline float ToFloat(Half value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16, exponent = value.bits >> 10 & 31, mantissa = value.bits & 0x3ff;
  if (exponent == 31) return FromBits(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) return FromBits(sign | BitsOf(static_cast<float>(mantissa) * 0x1p-24f));
  return FromBits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

#else

__device__ inline Half RoundToHalf(float value) {
  return {__builtin_bit_cast(uint16_t, static_cast<_Float16>(value))};
}

__device__ inline float ToFloat(Half value) { return static_cast<float>(__builtin_bit_cast(_Float16, value.bits)); }

#endif

#undef KNNCONV_SOFT

}  // namespace soft

#endif

}  // namespace knnconv::gpu
