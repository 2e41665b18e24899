#include "cpu/knn_dinput.h"

#include "cpu/handlers.h"

namespace knnconv::cpu {

ffi::Error RunKnnDinput(ffi::ThreadPool&, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer,
                        ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, ffi::Result<ffi::AnyBuffer>) {
  return ffi::Error(ffi::ErrorCode::kUnimplemented, "knn_dinput");
}

namespace {
ffi::Error Run() { return ffi::Error(ffi::ErrorCode::kUnimplemented, "knn_dinput"); }
}  // namespace
XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnDinput, Run, ffi::Ffi::Bind());
}  // namespace knnconv::cpu
