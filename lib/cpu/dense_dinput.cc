// dx[b, h, w, :] = sum over (fh, fw) with h = i*stride + fh*dilation - padding, ...:  g[b, i, j, :] @ weight[fh, fw]^T
#include "cpu/dense_tiles.h"
#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {

ffi::Error RunDenseDinput(ffi::ThreadPool pool, ffi::AnyBuffer g, ffi::AnyBuffer weight,
                          ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> packed,
                          ffi::Span<const int64_t> stride, ffi::Span<const int64_t> padding,
                          ffi::Span<const int64_t> dilation) {
  const Dims w = weight.dimensions(), in = g.dimensions(), out = dx->dimensions();
  KNNCONV_CHECK(w.size() >= 4 && stride.size() == 2 && padding.size() == 2 && dilation.size() == 2);
  const int rank = static_cast<int>(w.size()) - 4;
  KNNCONV_CHECK(in.size() == out.size() && static_cast<int>(in.size()) >= rank + 3);
  KNNCONV_CHECK(stride[0] > 0 && stride[1] > 0 && dilation[0] > 0 && dilation[1] > 0);
  KNNCONV_CHECK(in[in.size() - 1] == w[rank + 3] && out[out.size() - 1] == w[rank + 2]);
  KNNCONV_CHECK(Product(in, rank, in.size() - 3) == Product(out, rank, out.size() - 3));
  KNNCONV_CHECK(IsFloat(dx->element_type()) && packed->element_type() == ffi::DataType::F32);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w}, &groups));
  KNNCONV_CHECK(Product(out, 0, rank) == groups.count());
  KNNCONV_CHECK(g.element_type() == weight.element_type());
  Source read;
  KNNCONV_RETURN_IF_ERROR(ReadAs(g.element_type(), weight.element_type(), &read));

  const Panels panels = Panels::MakePairs(ActiveIsa(), &read, w[rank] * w[rank + 1], w[rank + 3], w[rank + 2]);
  const int64_t matrices = Product(w, 0, rank);
  KNNCONV_CHECK(static_cast<int64_t>(packed->element_count()) >= matrices * panels.size());
  float* packed_data = static_cast<float*>(packed->untyped_data());
  PackWeights(pool, ActiveIsa(), weight.untyped_data(), ToDtype(weight.element_type()), matrices, Reduce::kOutput,
              panels, packed_data);

  const Window window{{stride[0], stride[1]}, {padding[0], padding[1]}, {dilation[0], dilation[1]},
                      {w[rank], w[rank + 1]}};
  const WindowPlan plan = DinputPlan(window, {out[out.size() - 3], out[out.size() - 2]});
  RunDensePass(pool, {g, weight, packed_data, nullptr, {}, *dx, read, panels, groups, plan});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseDinput, RunDenseDinput,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()   // g
                                  .Arg<ffi::AnyBuffer>()   // weight
                                  .Ret<ffi::AnyBuffer>()   // dx
                                  .Ret<ffi::AnyBuffer>()   // packed
                                  .Attr<ffi::Span<const int64_t>>("stride")
                                  .Attr<ffi::Span<const int64_t>>("padding")
                                  .Attr<ffi::Span<const int64_t>>("dilation"));

}  // namespace knnconv::cpu
