// Elements in memory and in registers: conversions between fp32 and the 16-bit compute types, each rounding once, and
// loads and stores of operands whose type is known at run time.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::gpu {

// The order of knnconv::Dtype.
enum class Element : int { kF32 = 0, kF16 = 1, kBF16 = 2 };

KNNCONV_HOST_DEVICE int ElementBytes(Element type) { return type == Element::kF32 ? 4 : 2; }

template <typename T>
struct ElementOf;
template <>
struct ElementOf<float> {
  static constexpr Element value = Element::kF32;
};
template <>
struct ElementOf<Half> {
  static constexpr Element value = Element::kF16;
};
template <>
struct ElementOf<BFloat> {
  static constexpr Element value = Element::kBF16;
};

#if defined(KNNCONV_KERNELS)

template <typename T>
KNNCONV_DEVICE T FromFloat(float value);
template <>
KNNCONV_DEVICE float FromFloat<float>(float value) {
  return value;
}
template <>
KNNCONV_DEVICE Half FromFloat<Half>(float value) {
#if defined(KNNCONV_SOFT_ELEMENTS)
  return soft::RoundToHalf(value);
#else
  return __float2half_rn(value);
#endif
}
template <>
KNNCONV_DEVICE BFloat FromFloat<BFloat>(float value) {
#if defined(KNNCONV_SOFT_ELEMENTS)
  return soft::RoundToBFloat(value);
#else
  return __float2bfloat16(value);
#endif
}

KNNCONV_DEVICE float ToFloat(float value) { return value; }
#if defined(KNNCONV_SOFT_ELEMENTS)
using soft::ToFloat;
#else
KNNCONV_DEVICE float ToFloat(Half value) { return __half2float(value); }
KNNCONV_DEVICE float ToFloat(BFloat value) { return __bfloat162float(value); }
#endif

KNNCONV_DEVICE float LoadElement(const void* data, Element type, int64_t index) {
  switch (type) {
    case Element::kF32:
      return static_cast<const float*>(data)[index];
    case Element::kF16:
      return ToFloat(static_cast<const Half*>(data)[index]);
    default:
      return ToFloat(static_cast<const BFloat*>(data)[index]);
  }
}

KNNCONV_DEVICE void StoreElement(void* data, Element type, int64_t index, float value) {
  switch (type) {
    case Element::kF32:
      static_cast<float*>(data)[index] = value;
      break;
    case Element::kF16:
      static_cast<Half*>(data)[index] = FromFloat<Half>(value);
      break;
    default:
      static_cast<BFloat*>(data)[index] = FromFloat<BFloat>(value);
  }
}

#endif

}  // namespace knnconv::gpu
