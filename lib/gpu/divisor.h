// Division of numbers below 2^31 by a divisor that is fixed for a launch: a multiplication and a shift.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::gpu {

class Divisor {
 public:
  Divisor() = default;

  // A divisor of 0 counts as 1, so that kernels over empty dimensions need no case of their own.
  explicit Divisor(uint32_t divisor) : divisor_(divisor > 0 ? divisor : 1) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    factor_ = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor_) / divisor_ + 1);
  }

  struct Result {
    int quotient, remainder;
  };

#if defined(KNNCONV_KERNELS)
  KNNCONV_DEVICE Result Divide(int value) const {
    const uint32_t n = static_cast<uint32_t>(value);
    const uint32_t quotient = (__umulhi(n, factor_) + n) >> shift_;
    return {static_cast<int>(quotient), static_cast<int>(n - quotient * divisor_)};
  }
#endif

 private:
  uint32_t divisor_ = 1, factor_ = 1, shift_ = 0;
};

}  // namespace knnconv::gpu
