// g16 = round(clip(g)), x16 = round(x): both operands of a backward pass cast in one launch.
#include "gpu/cast_operands.h"

#include "gpu/handler.h"
#include "gpu/handlers.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, ffi::Buffer<ffi::F32> g, ffi::Buffer<ffi::F32> x, ResultBuffer g16,
               ResultBuffer x16) {
  KNNCONV_CHECK(Is16Bit(g16->element_type()) && x16->element_type() == g16->element_type());
  KNNCONV_CHECK(g.element_count() == g16->element_count() && x.element_count() == x16->element_count());
  const CastOperand cotangent{g.typed_data(), g16->untyped_data(), static_cast<int64_t>(g.element_count())};
  const CastOperand input{x.typed_data(), x16->untyped_data(), static_cast<int64_t>(x.element_count())};
  return ToError(RunCast(SiteOf<kStage>(stream, device), ToElement(g16->element_type()), cotangent, input));
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<ffi::Buffer<ffi::F32>>()  // g
      .template Arg<ffi::Buffer<ffi::F32>>()  // x
      .template Ret<ffi::AnyBuffer>()         // g16
      .template Ret<ffi::AnyBuffer>();        // x16
}

}  // namespace

KNNCONV_DEFINE_HANDLER(CastOperands, Run, Binding);

}  // namespace knnconv::gpu
