#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "knn_forward"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnForward, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
