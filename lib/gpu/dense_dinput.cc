// dx[b, h, w, :] = sum over (i, fh), (j, fw) with (h, w) = (i, j) * stride + (fh, fw) * dilation - padding:
//                  g[b, i, j, :] @ weight[fh, fw]^T
#include "gpu/handlers.h"
#include "gpu/window.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer g, Buffer weight, ResultBuffer dx, ResultBuffer,
               ffi::Dictionary attributes) {
  const Dims w = weight.dimensions(), in = g.dimensions();
  KNNCONV_CHECK(w.size() >= 4);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(static_cast<int>(w.size()) - 4, {in, w}, &groups));
  TapGemm gemm;
  KNNCONV_RETURN_IF_ERROR(MakeTapGemm(g, weight, *dx, 3, /*transposed=*/true, groups, &gemm));
  KNNCONV_RETURN_IF_ERROR(SetWindow(attributes, in, w, dx->dimensions(), /*transposed=*/true, &gemm));
  return RunTapGemm(SiteOf<kStage>(stream, device), gemm, attributes);
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // g
      .template Arg<Buffer>()          // weight
      .template Ret<ffi::AnyBuffer>()  // dx
      .template Ret<ffi::AnyBuffer>()  // packed
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(DenseDinput, Run, Binding);

}  // namespace knnconv::gpu
