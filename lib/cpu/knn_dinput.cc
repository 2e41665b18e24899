#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "knn_dinput"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnDinput, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
