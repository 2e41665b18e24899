// dw[fh, fw, c, o] = sum over b, i, j:  x[b, i*stride + fh*dilation - padding, ..., c] * g[b, i, j, o]
#include "common/layout.h"
#include "cpu/dense_taps.h"
#include "cpu/dweight.h"
#include "cpu/dweight_lines.h"
#include "cpu/dweight_pairs.h"
#include "cpu/dweight_taps.h"
#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {

ffi::Error RunDenseDweight(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::Result<ffi::AnyBuffer> dw,
                           ffi::Result<ffi::AnyBuffer> db, ffi::Result<ffi::AnyBuffer> partials,
                           ffi::Span<const int64_t> stride, ffi::Span<const int64_t> padding,
                           ffi::Span<const int64_t> dilation) {
  const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw->dimensions();
  KNNCONV_CHECK(wd.size() >= 4);
  KNNCONV_CHECK(stride.size() == 2 && padding.size() == 2 && dilation.size() == 2);
  KNNCONV_CHECK(stride[0] > 0 && stride[1] > 0 && dilation[0] > 0 && dilation[1] > 0);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(int(wd.size()) - 4, {xd, gd, wd}, &groups));
  KNNCONV_RETURN_IF_ERROR(DweightCall::Check(groups, 2, 2, x, g, *dw, *db, *partials));
  const DweightCall call(groups, 2, x, g, *dw, *db, *partials);

  const size_t pixels = xd.size() - 3;
  DenseTaps taps{xd[pixels], xd[pixels + 1], call.channels, gd[pixels], gd[pixels + 1], wd[wd.size() - 3], {}, {}, {}};
  std::copy_n(stride.begin(), 2, taps.stride);
  std::copy_n(padding.begin(), 2, taps.padding);
  std::copy_n(dilation.begin(), 2, taps.dilation);
  const int64_t rows = call.batch * taps.out_height * taps.out_width;
  const auto taps_of = [&](int64_t) { return taps; };
  const bool pairs = call.TakesPairs(ActiveIsa());
  const auto plan = DweightPlan::Make(call, rows, 1, pairs);
  if (pairs && LineForm<true>::Suits(plan, taps)) {
    RunDweight<LineForm<true>>(pool, plan, call, taps_of);
  } else if (pairs) {
    RunDweight<PairForm>(pool, plan, call, taps_of);
  } else if (LineForm<false>::Suits(plan, taps)) {
    RunDweight<LineForm<false>>(pool, plan, call, taps_of);
  } else {
    RunDweight<TapForm>(pool, plan, call, taps_of);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseDweight, RunDenseDweight,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<ffi::Span<const int64_t>>("stride")
                                  .Attr<ffi::Span<const int64_t>>("padding")
                                  .Attr<ffi::Span<const int64_t>>("dilation"));

}  // namespace knnconv::cpu
