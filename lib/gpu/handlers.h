// The GPU modules' handlers. docs/handlers.md states what each takes and promises. Each has two stages: the plain name
// executes, Initialize makes its kernels ready.
#pragma once

#include "common/ffi.h"

namespace knnconv::gpu {

// X(symbol, operation) for every target jax_knnconv_<operation>_v1.
#define KNNCONV_FOR_EACH_HANDLER(X)   \
  X(CastOperands, cast_operands)      \
  X(DenseForward, dense_forward)      \
  X(DenseDinput, dense_dinput)        \
  X(DenseDweight, dense_dweight)      \
  X(KnnForward, knn_forward)          \
  X(KnnDinput, knn_dinput)            \
  X(KnnDweight, knn_dweight)          \
  X(KnnBackward, knn_backward)

#define KNNCONV_DECLARE_STAGES(symbol, operation) \
  XLA_FFI_DECLARE_HANDLER_SYMBOL(symbol);         \
  XLA_FFI_DECLARE_HANDLER_SYMBOL(symbol##Initialize);
KNNCONV_FOR_EACH_HANDLER(KNNCONV_DECLARE_STAGES)
#undef KNNCONV_DECLARE_STAGES

}  // namespace knnconv::gpu
