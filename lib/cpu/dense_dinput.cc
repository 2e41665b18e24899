#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "dense_dinput"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseDinput, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
