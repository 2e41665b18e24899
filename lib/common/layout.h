// How an operand's dimensions are read: [groups..., batch..., fixed dimensions].
//
// vmap adds group dimensions at the front. Every operand of a call has the same number of them, each of size 1 (shared)
// or of the group's size. Batch dimensions exist on x, y, g and dx only and count as one: their product.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "common/ffi.h"

namespace knnconv {

inline int64_t Product(Dims dims, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= dims[i];
  return n;
}

class Groups {
 public:
  static constexpr int kMaxRank = 8;

  // `rank` leading dimensions of every operand; InvalidArgument when two sizes differ and neither is 1.
  static ffi::Error Make(int rank, std::initializer_list<Dims> operands, Groups* groups) {
    KNNCONV_CHECK(rank >= 0 && rank <= kMaxRank);
    groups->rank_ = rank;
    groups->sizes_.fill(1);
    for (Dims dims : operands) {
      KNNCONV_CHECK(static_cast<int>(dims.size()) >= rank);
      for (int i = 0; i < rank; ++i) {
        int64_t& size = groups->sizes_[i];
        if (size == 1) size = dims[i];
        KNNCONV_CHECK(dims[i] == size || dims[i] == 1);
      }
    }
    return ffi::Error::Success();
  }

  int rank() const { return rank_; }

  int64_t size(int dimension) const { return sizes_[dimension]; }

  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= sizes_[i];
    return n;
  }

  // Which of its own matrices an operand shows to group number `group`; dimensions of size 1 are shared.
  int64_t IndexOf(int64_t group, Dims operand) const {
    int64_t index = 0, stride = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      const int64_t position = group % sizes_[i];
      group /= sizes_[i];
      if (operand[i] != 1) index += position * stride;
      stride *= operand[i];
    }
    return index;
  }

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> sizes_{};
};

}  // namespace knnconv
