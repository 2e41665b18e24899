// y[b, m, :] = bias + sum over taps (n, slot) of row m:  x[b, n, :] @ weight[slot]
#include "cpu/handlers.h"
#include "cpu/knn_tiles.h"

namespace knnconv::cpu {
namespace {

ffi::Error RunKnnForward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer bias,
                         ffi::AnyBuffer indices, ffi::AnyBuffer slots, ffi::Result<ffi::AnyBuffer> y,
                         ffi::Result<ffi::AnyBuffer> packed, int64_t zero_empty_rows) {
  const Dims w = weight.dimensions(), in = x.dimensions(), out = y->dimensions(), table = indices.dimensions();
  KNNCONV_CHECK(w.size() >= 3);
  const int rank = static_cast<int>(w.size()) - 3;
  KNNCONV_CHECK(in.size() == out.size() && static_cast<int>(in.size()) >= rank + 2);
  KNNCONV_CHECK(static_cast<int>(table.size()) == rank + 2);
  KNNCONV_CHECK(in[in.size() - 1] == w[rank + 1] && out[out.size() - 1] == w[rank + 2]);
  KNNCONV_CHECK(out[out.size() - 2] == table[rank]);
  KNNCONV_CHECK(Product(in, rank, in.size() - 2) == Product(out, rank, out.size() - 2));
  KNNCONV_CHECK(IsFloat(y->element_type()) && packed->element_type() == ffi::DataType::F32);
  KNNCONV_CHECK(indices.element_type() == ffi::DataType::S32 && slots.element_type() == ffi::DataType::S32);
  KNNCONV_CHECK(IsAbsent(bias) || bias.element_type() == ffi::DataType::F32);

  // Absent operands show the weight's group dimensions, which adds nothing.
  const Dims bias_dims = IsAbsent(bias) ? w : bias.dimensions();
  const Dims slot_dims = IsAbsent(slots) ? w : slots.dimensions();
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w, bias_dims, table, slot_dims}, &groups));
  KNNCONV_CHECK(Product(out, 0, rank) == groups.count());
  KNNCONV_CHECK(IsAbsent(bias) || (static_cast<int>(bias_dims.size()) == rank + 1 && bias_dims[rank] == w[rank + 2]));
  KNNCONV_CHECK(IsAbsent(slots) || (static_cast<int>(slot_dims.size()) == rank + 2 && slot_dims[rank] == table[rank] &&
                                    slot_dims[rank + 1] == table[rank + 1]));
  Source read;
  KNNCONV_RETURN_IF_ERROR(ReadAs(x.element_type(), weight.element_type(), &read));

  // Explicit slots may sum several rows before the product: floats, not pairs.
  const Panels panels = IsAbsent(slots) ? Panels::MakePairs(ActiveIsa(), &read, w[rank], w[rank + 1], w[rank + 2])
                                        : Panels(w[rank], w[rank + 1], w[rank + 2]);
  const int64_t matrices = Product(w, 0, rank);
  KNNCONV_CHECK(static_cast<int64_t>(packed->element_count()) >= matrices * panels.size());
  float* packed_data = static_cast<float*>(packed->untyped_data());
  PackWeights(pool, ActiveIsa(), weight.untyped_data(), ToDtype(weight.element_type()), matrices, Reduce::kInput,
              panels, packed_data);
  const float* bias_data = IsAbsent(bias) ? nullptr : static_cast<const float*>(bias.untyped_data());
  RunKnnPass(pool, {x, weight, packed_data, bias_data, bias_dims, *y, read, panels, groups, zero_empty_rows != 0},
             ForwardTaps{indices, IsAbsent(slots) ? nullptr : &slots, table[rank + 1]});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnForward, RunKnnForward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()   // x
                                  .Arg<ffi::AnyBuffer>()   // weight
                                  .Arg<ffi::AnyBuffer>()   // bias
                                  .Arg<ffi::AnyBuffer>()   // indices
                                  .Arg<ffi::AnyBuffer>()   // slots
                                  .Ret<ffi::AnyBuffer>()   // y
                                  .Ret<ffi::AnyBuffer>()   // packed
                                  .Attr<int64_t>("zero_empty_rows"));

}  // namespace knnconv::cpu
