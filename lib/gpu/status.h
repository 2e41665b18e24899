// What a launcher returns: success, or which runtime call failed, where and why. Free of XLA, so that kernels compile
// without its headers; handlers turn it into ffi::Error.
#pragma once

#include "gpu/vendor.h"

namespace knnconv::gpu {

struct Status {
  gpuError_t code = gpuSuccess;
  const char* file = "";
  int line = 0;
  const char* call = "";

  bool ok() const { return code == gpuSuccess; }
};

}  // namespace knnconv::gpu

// Returns from the enclosing launcher with place and call when a runtime call fails.
#define KNNCONV_GPU_CHECK(expression)                                                                         \
  do {                                                                                                        \
    if (const gpuError_t code_ = (expression); code_ != gpuSuccess) {                                         \
      return ::knnconv::gpu::Status{code_, __FILE__, __LINE__, #expression};                                  \
    }                                                                                                         \
  } while (0)

#define KNNCONV_GPU_RETURN_IF_ERROR(expression)                                                               \
  do {                                                                                                        \
    if (const ::knnconv::gpu::Status status_ = (expression); !status_.ok()) return status_;                   \
  } while (0)
