#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "dense_forward"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseForward, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
