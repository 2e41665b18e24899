#include "gpu/handler.h"
#include "gpu/handlers.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t, int32_t, ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error(ffi::ErrorCode::kUnimplemented, "knn_backward has no GPU kernel yet");
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>().RemainingArgs().RemainingRets();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(KnnBackward, Run, Binding);

}  // namespace knnconv::gpu
