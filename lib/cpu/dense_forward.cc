// y[b, i, j, :] = bias + sum over (fh, fw):  x[b, i*stride + fh*dilation - padding, ...] @ weight[fh, fw]
#include "cpu/dense_tiles.h"
#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {

ffi::Error RunDenseForward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer bias,
                           ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> packed,
                           ffi::Span<const int64_t> stride, ffi::Span<const int64_t> padding,
                           ffi::Span<const int64_t> dilation) {
  const Dims w = weight.dimensions(), in = x.dimensions(), out = y->dimensions();
  KNNCONV_CHECK(w.size() >= 4 && stride.size() == 2 && padding.size() == 2 && dilation.size() == 2);
  const int rank = static_cast<int>(w.size()) - 4;
  KNNCONV_CHECK(in.size() == out.size() && static_cast<int>(in.size()) >= rank + 3);
  KNNCONV_CHECK(stride[0] > 0 && stride[1] > 0 && dilation[0] > 0 && dilation[1] > 0);
  KNNCONV_CHECK(in[in.size() - 1] == w[rank + 2] && out[out.size() - 1] == w[rank + 3]);
  KNNCONV_CHECK(Product(in, rank, in.size() - 3) == Product(out, rank, out.size() - 3));
  KNNCONV_CHECK(IsFloat(y->element_type()) && packed->element_type() == ffi::DataType::F32);
  KNNCONV_CHECK(IsAbsent(bias) || bias.element_type() == ffi::DataType::F32);

  Groups groups;
  if (IsAbsent(bias)) {
    KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w}, &groups));
  } else {
    KNNCONV_CHECK(static_cast<int>(bias.dimensions().size()) == rank + 1 && bias.dimensions()[rank] == w[rank + 3]);
    KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w, bias.dimensions()}, &groups));
  }
  KNNCONV_CHECK(Product(out, 0, rank) == groups.count());
  Source read;
  KNNCONV_RETURN_IF_ERROR(ReadAs(x.element_type(), weight.element_type(), &read));

  const Panels panels = Panels::MakePairs(ActiveIsa(), &read, w[rank] * w[rank + 1], w[rank + 2], w[rank + 3]);
  const int64_t matrices = Product(w, 0, rank);
  KNNCONV_CHECK(static_cast<int64_t>(packed->element_count()) >= matrices * panels.size());
  float* packed_data = static_cast<float*>(packed->untyped_data());
  PackWeights(pool, ActiveIsa(), weight.untyped_data(), ToDtype(weight.element_type()), matrices, Reduce::kInput,
              panels, packed_data);

  const Window window{{stride[0], stride[1]}, {padding[0], padding[1]}, {dilation[0], dilation[1]},
                      {w[rank], w[rank + 1]}};
  const WindowPlan plan = ForwardPlan(window, {out[out.size() - 3], out[out.size() - 2]});
  const float* bias_data = IsAbsent(bias) ? nullptr : static_cast<const float*>(bias.untyped_data());
  RunDensePass(pool, {x, weight, packed_data, bias_data, bias.dimensions(), *y, read, panels, groups, plan});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseForward, RunDenseForward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()   // x
                                  .Arg<ffi::AnyBuffer>()   // weight
                                  .Arg<ffi::AnyBuffer>()   // bias
                                  .Ret<ffi::AnyBuffer>()   // y
                                  .Ret<ffi::AnyBuffer>()   // packed
                                  .Attr<ffi::Span<const int64_t>>("stride")
                                  .Attr<ffi::Span<const int64_t>>("padding")
                                  .Attr<ffi::Span<const int64_t>>("dilation"));

}  // namespace knnconv::cpu
