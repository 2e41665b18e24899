#include "cpu/knn_dinput.h"

#include "cpu/handlers.h"
#include "cpu/knn_tiles.h"

namespace knnconv::cpu {

ffi::Error RunKnnDinput(ffi::ThreadPool& pool, ffi::AnyBuffer g, ffi::AnyBuffer weight, ffi::AnyBuffer source_offsets,
                        ffi::AnyBuffer source_rows, ffi::AnyBuffer source_slots, ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Result<ffi::AnyBuffer> packed) {
  const Dims w = weight.dimensions(), in = g.dimensions(), out = dx->dimensions();
  const Dims offsets = source_offsets.dimensions(), rows = source_rows.dimensions();
  KNNCONV_CHECK(w.size() >= 3);
  const int rank = static_cast<int>(w.size()) - 3;
  KNNCONV_CHECK(in.size() == out.size() && static_cast<int>(in.size()) >= rank + 2);
  KNNCONV_CHECK(static_cast<int>(offsets.size()) == rank + 2 && static_cast<int>(rows.size()) == rank + 1);
  KNNCONV_CHECK(rows == source_slots.dimensions());
  KNNCONV_CHECK(in[in.size() - 1] == w[rank + 2] && out[out.size() - 1] == w[rank + 1]);
  KNNCONV_CHECK(offsets[rank] == out[out.size() - 2] + 1 && offsets[rank + 1] == 2);
  KNNCONV_CHECK(Product(in, rank, in.size() - 2) == Product(out, rank, out.size() - 2));
  KNNCONV_CHECK(IsFloat(dx->element_type()) && packed->element_type() == ffi::DataType::F32);
  KNNCONV_CHECK(source_offsets.element_type() == ffi::DataType::S32);
  KNNCONV_CHECK(source_rows.element_type() == ffi::DataType::S32 && source_slots.element_type() == ffi::DataType::S32);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w, offsets, rows}, &groups));
  KNNCONV_CHECK(Product(out, 0, rank) == groups.count());
  KNNCONV_CHECK(g.element_type() == weight.element_type());
  Source read;
  KNNCONV_RETURN_IF_ERROR(ReadAs(g.element_type(), weight.element_type(), &read));

  const Panels panels(w[rank], w[rank + 2], w[rank + 1]);
  const int64_t matrices = Product(w, 0, rank);
  KNNCONV_CHECK(static_cast<int64_t>(packed->element_count()) >= matrices * panels.size());
  float* packed_data = static_cast<float*>(packed->untyped_data());
  PackWeights(pool, ActiveIsa(), weight.untyped_data(), ToDtype(weight.element_type()), matrices, Reduce::kOutput,
              panels, packed_data);
  RunKnnPass(pool, {g, weight, packed_data, nullptr, {}, *dx, read, panels, groups, false},
             SourceTaps{source_offsets, source_rows, source_slots, rows[rank]});
  return ffi::Error::Success();
}

namespace {

ffi::Error Run(ffi::ThreadPool pool, ffi::AnyBuffer g, ffi::AnyBuffer weight, ffi::AnyBuffer source_offsets,
               ffi::AnyBuffer source_rows, ffi::AnyBuffer source_slots, ffi::Result<ffi::AnyBuffer> dx,
               ffi::Result<ffi::AnyBuffer> packed) {
  return RunKnnDinput(pool, g, weight, source_offsets, source_rows, source_slots, dx, packed);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnDinput, Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()   // g
                                  .Arg<ffi::AnyBuffer>()   // weight
                                  .Arg<ffi::AnyBuffer>()   // source_offsets
                                  .Arg<ffi::AnyBuffer>()   // source_rows
                                  .Arg<ffi::AnyBuffer>()   // source_slots
                                  .Ret<ffi::AnyBuffer>()   // dx
                                  .Ret<ffi::AnyBuffer>()); // packed

}  // namespace knnconv::cpu
