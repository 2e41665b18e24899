// What the four tile passes read from their operands besides shapes: element kinds, absent operands, group offsets.
#pragma once

#include <cstdint>

#include "common/ffi.h"
#include "common/layout.h"
#include "cpu/isa/isa.h"

namespace knnconv::cpu {

// An absent optional operand has shape [0].
inline bool IsAbsent(const ffi::AnyBuffer& operand) {
  const Dims dims = operand.dimensions();
  return dims.size() == 1 && dims[0] == 0;
}

// How elements of type `source` meet weights of type `compute`.
inline ffi::Error ReadAs(ffi::DataType source, ffi::DataType compute, Source* read) {
  KNNCONV_CHECK(IsFloat(source) && IsFloat(compute));
  KNNCONV_CHECK(source == compute || source == ffi::DataType::F32);
  const Dtype from = ToDtype(source), to = ToDtype(compute);
  if (from == to) {
    *read = from == Dtype::kF32 ? Source::kF32 : from == Dtype::kF16 ? Source::kF16 : Source::kBF16;
  } else {
    *read = to == Dtype::kF16 ? Source::kF32AsF16 : Source::kF32AsBF16;
  }
  return ffi::Error::Success();
}

inline int64_t ByteWidth(Source source) { return source == Source::kF16 || source == Source::kBF16 ? 2 : 4; }

// Address of group `group`'s matrix of `elements` elements of `width` bytes.
inline char* GroupData(const ffi::AnyBuffer& operand, const Groups& groups, int64_t group, int64_t elements,
                       int64_t width) {
  return static_cast<char*>(operand.untyped_data()) + groups.IndexOf(group, operand.dimensions()) * elements * width;
}

// The same for an index operand.
inline const int32_t* GroupIndices(const ffi::AnyBuffer& operand, const Groups& groups, int64_t group,
                                   int64_t elements) {
  return reinterpret_cast<const int32_t*>(GroupData(operand, groups, group, elements, sizeof(int32_t)));
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace knnconv::cpu
