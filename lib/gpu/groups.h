// Group dimensions as kernels see them: sizes once a call, and for each operand how far apart its matrices lie.
// Passed by value. docs/handlers.md says what groups are.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr int kMaxGroupRank = 8;

struct GroupShape {
  int rank = 0;
  int64_t size[kMaxGroupRank] = {};

  KNNCONV_HOST_DEVICE int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
};

// Elements from one of an operand's matrices to the next along each group dimension; 0 where the operand is shared.
struct GroupStrides {
  int64_t step[kMaxGroupRank] = {};

  // Elements from the operand's start to the matrix that group number `group` (row-major) uses.
  KNNCONV_HOST_DEVICE int64_t Offset(const GroupShape& shape, uint32_t group) const {
    int64_t offset = 0;
KNNCONV_ROLLED
    for (int i = shape.rank - 1; i >= 0; --i) {
      const uint32_t size = static_cast<uint32_t>(shape.size[i]);
      offset += group % size * step[i];
      group /= size;
    }
    return offset;
  }
};

}  // namespace knnconv::gpu
