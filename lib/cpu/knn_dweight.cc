#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "knn_dweight"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnDweight, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
