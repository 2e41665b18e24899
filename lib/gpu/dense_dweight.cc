// dw[fh, fw, c, o] = sum over b, i, j:  x[b, (i, j) * stride + (fh, fw) * dilation - padding, c] * g[b, i, j, o]
#include "gpu/dweight_call.h"
#include "gpu/handlers.h"
#include "gpu/window.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer x, Buffer g, ResultBuffer dw, ResultBuffer db,
               ResultBuffer partials, ffi::Dictionary attributes) {
  const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw->dimensions();
  KNNCONV_CHECK(wd.size() >= 4);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(static_cast<int>(wd.size()) - 4, {xd, gd}, &groups));
  Dweight dweight;
  KNNCONV_RETURN_IF_ERROR(MakeDweight(groups, 2, 2, x, g, *dw, *db, *partials, &dweight));

  DenseTaps taps;
  KNNCONV_RETURN_IF_ERROR(ReadPair(attributes, "stride", 1, taps.stride));
  KNNCONV_RETURN_IF_ERROR(ReadPair(attributes, "padding", -kReach, taps.padding));
  KNNCONV_RETURN_IF_ERROR(ReadPair(attributes, "dilation", 1, taps.dilation));
  for (int d = 0; d < 2; ++d) {
    const int64_t in = xd[xd.size() - 3 + d], out = gd[gd.size() - 3 + d], kernel = wd[wd.size() - 4 + d];
    KNNCONV_CHECK(in < kReach && out * taps.stride[d] < kReach && kernel * taps.dilation[d] < kReach);
    taps.in_size[d] = static_cast<int32_t>(in);
    taps.out_size[d] = static_cast<int32_t>(out);
  }
  taps.kernel_width = static_cast<int32_t>(wd[wd.size() - 3]);
  DweightChoice choice;
  KNNCONV_RETURN_IF_ERROR(ReadDweightChoice(attributes, &choice));
  return ToError(RunDweight(SiteOf<kStage>(stream, device), dweight, taps, choice));
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // x
      .template Arg<Buffer>()          // g
      .template Ret<ffi::AnyBuffer>()  // dw
      .template Ret<ffi::AnyBuffer>()  // db
      .template Ret<ffi::AnyBuffer>()  // partials
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(DenseDweight, Run, Binding);

}  // namespace knnconv::gpu
