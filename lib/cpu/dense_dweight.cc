#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "dense_dweight"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseDweight, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
