// The CPU module's handlers. docs/handlers.md states what each takes and promises.
#pragma once

#include "common/ffi.h"

namespace knnconv::cpu {

XLA_FFI_DECLARE_HANDLER_SYMBOL(CastOperands);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DenseForward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DenseDinput);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DenseDweight);
XLA_FFI_DECLARE_HANDLER_SYMBOL(KnnForward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(KnnDinput);
XLA_FFI_DECLARE_HANDLER_SYMBOL(KnnDweight);
XLA_FFI_DECLARE_HANDLER_SYMBOL(KnnBackward);

}  // namespace knnconv::cpu
