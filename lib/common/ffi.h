// XLA FFI with the three things every handler needs: checks that name file and line, element types, and versions.
#pragma once

#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"

#ifdef KNNCONV_REQUIRED_FFI_MINOR
// A runtime accepts handlers of its own or an older minor version, so wheels are built with the oldest one supported.
static_assert(XLA_FFI_API_MINOR == KNNCONV_REQUIRED_FFI_MINOR, "build wheels against the oldest supported jaxlib");
#endif

#define KNNCONV_STRINGIFY_(x) #x
#define KNNCONV_STRINGIFY(x) KNNCONV_STRINGIFY_(x)
#define KNNCONV_HERE __FILE__ ":" KNNCONV_STRINGIFY(__LINE__)

// Returns InvalidArgument with place and expression from the enclosing handler when `condition` does not hold.
// Python has checked all shapes before; a failure here is a fault of this package, not of the caller.
#define KNNCONV_CHECK(condition)                                                                    \
  do {                                                                                              \
    if (!(condition)) return ::xla::ffi::Error::InvalidArgument(KNNCONV_HERE ": " #condition);      \
  } while (0)

#define KNNCONV_RETURN_IF_ERROR(expression)                    \
  do {                                                         \
    if (::xla::ffi::Error e_ = (expression); e_.failure()) return e_; \
  } while (0)

namespace knnconv {

namespace ffi = ::xla::ffi;

using Dims = ffi::Span<const int64_t>;

enum class Dtype : int { kF32 = 0, kF16 = 1, kBF16 = 2 };
inline constexpr int kDtypes = 3;

inline bool IsFloat(ffi::DataType type) {
  return type == ffi::DataType::F32 || type == ffi::DataType::F16 || type == ffi::DataType::BF16;
}

// Call only after IsFloat.
inline Dtype ToDtype(ffi::DataType type) {
  return type == ffi::DataType::F32 ? Dtype::kF32 : type == ffi::DataType::F16 ? Dtype::kF16 : Dtype::kBF16;
}

inline int64_t ByteWidth(Dtype type) { return type == Dtype::kF32 ? 4 : 2; }

}  // namespace knnconv
