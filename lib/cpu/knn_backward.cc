// dx, dw and db of a KNN convolution in one call: the operands are read while they are warm, and only one launch waits.
#include "cpu/handlers.h"
#include "cpu/knn_dinput.h"
#include "cpu/knn_dweight.h"

namespace knnconv::cpu {
namespace {

ffi::Error RunKnnBackward(ffi::ThreadPool pool, ffi::AnyBuffer g, ffi::AnyBuffer x, ffi::AnyBuffer weight,
                          ffi::AnyBuffer indices, ffi::AnyBuffer slots, ffi::AnyBuffer source_offsets,
                          ffi::AnyBuffer source_rows, ffi::AnyBuffer source_slots, ffi::AnyBuffer slot_offsets,
                          ffi::AnyBuffer slot_rows, ffi::AnyBuffer slot_sources, ffi::Result<ffi::AnyBuffer> dx,
                          ffi::Result<ffi::AnyBuffer> dw, ffi::Result<ffi::AnyBuffer> db,
                          ffi::Result<ffi::AnyBuffer> packed, ffi::Result<ffi::AnyBuffer> partials,
                          int64_t zero_empty_rows) {
  KNNCONV_RETURN_IF_ERROR(RunKnnDinput(pool, g, weight, source_offsets, source_rows, source_slots, dx, packed));
  return RunKnnDweight(pool, x, g, indices, slots, slot_offsets, slot_rows, slot_sources, *dw, *db, *partials,
                       zero_empty_rows != 0);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnBackward, RunKnnBackward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("zero_empty_rows"));

}  // namespace knnconv::cpu
