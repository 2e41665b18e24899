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

// Finds the step of an operand from one group to the next, where groups are numbered row-major: 0 where all share one
// matrix. False where there is none, since some dimensions share the operand and others do not.
inline bool FindStep(const GroupShape& shape, const GroupStrides& strides, int64_t* step) {
  *step = 0;
  int64_t groups = 1;  // of the dimensions behind this one
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape.size[i] == 1) continue;
    if (groups == 1) *step = strides.step[i];
    if (strides.step[i] != groups * *step) return false;
    groups *= shape.size[i];
  }
  return true;
}

}  // namespace knnconv::gpu
