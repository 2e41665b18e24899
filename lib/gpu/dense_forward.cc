// y[b, i, j, :] = bias + sum over (fh, fw):  x[b, i * stride + fh * dilation - padding, ..., :] @ weight[fh, fw]
#include "gpu/handlers.h"
#include "gpu/window.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer x, Buffer weight, Buffer bias, ResultBuffer y, ResultBuffer,
               ffi::Dictionary attributes) {
  const Dims w = weight.dimensions(), in = x.dimensions();
  KNNCONV_CHECK(w.size() >= 4);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(static_cast<int>(w.size()) - 4, {in, w, DimsOr(bias, w)}, &groups));
  TapGemm gemm;
  KNNCONV_RETURN_IF_ERROR(MakeTapGemm(x, weight, *y, 3, /*transposed=*/false, groups, &gemm));
  KNNCONV_RETURN_IF_ERROR(SetBias(bias, &gemm));
  KNNCONV_RETURN_IF_ERROR(SetWindow(attributes, in, w, y->dimensions(), /*transposed=*/false, &gemm));
  return RunTapGemm(SiteOf<kStage>(stream, device), gemm, attributes);
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // x
      .template Arg<Buffer>()          // weight
      .template Arg<Buffer>()          // bias
      .template Ret<ffi::AnyBuffer>()  // y
      .template Ret<ffi::AnyBuffer>()  // packed
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(DenseForward, Run, Binding);

}  // namespace knnconv::gpu
