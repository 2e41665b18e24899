#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "cast_operands"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(CastOperands, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
