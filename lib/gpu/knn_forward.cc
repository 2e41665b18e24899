// y[b, m, :] = bias + sum over taps (n, slot) of row m:  x[b, n, :] @ weight[slot]
#include "gpu/handlers.h"
#include "gpu/operands.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer x, Buffer weight, Buffer bias, Buffer indices, Buffer slots,
               ResultBuffer y, ResultBuffer, ffi::Dictionary attributes) {
  const Dims w = weight.dimensions(), in = x.dimensions(), table = indices.dimensions();
  KNNCONV_CHECK(w.size() >= 3);
  const int rank = static_cast<int>(w.size()) - 3;
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w, DimsOr(bias, w), table, DimsOr(slots, w)}, &groups));
  TapGemm gemm;
  KNNCONV_RETURN_IF_ERROR(MakeTapGemm(x, weight, *y, 2, /*transposed=*/false, groups, &gemm));
  KNNCONV_RETURN_IF_ERROR(SetBias(bias, &gemm));
  KNNCONV_CHECK(static_cast<int>(table.size()) == rank + 2 && table[rank] == gemm.nodes);
  KNNCONV_CHECK(indices.element_type() == ffi::DataType::S32 && slots.element_type() == ffi::DataType::S32);
  KNNCONV_CHECK(table[rank + 1] < INT32_MAX / 2);
  gemm.kind = IsAbsent(slots) ? Taps::kColumns : Taps::kRows;
  gemm.table.columns = static_cast<int32_t>(table[rank + 1]);
  gemm.table.sources = static_cast<const int32_t*>(indices.untyped_data());
  gemm.table.source_groups = StridesOf(rank, table, table[rank] * table[rank + 1]);
  if (gemm.kind == Taps::kRows) {
    const Dims dims = slots.dimensions();
    KNNCONV_CHECK(static_cast<int>(dims.size()) == rank + 2);
    KNNCONV_CHECK(dims[rank] == table[rank] && dims[rank + 1] == table[rank + 1]);
    gemm.table.slots = static_cast<const int32_t*>(slots.untyped_data());
    gemm.table.slot_groups = StridesOf(rank, dims, dims[rank] * dims[rank + 1]);
  } else {
    KNNCONV_CHECK(gemm.table.columns == gemm.slots);
  }
  const auto zero_empty_rows = attributes.get<int64_t>("zero_empty_rows");
  if (zero_empty_rows.has_error()) return zero_empty_rows.error();
  gemm.zero_empty_rows = *zero_empty_rows != 0;
  return RunTapGemm(SiteOf<kStage>(stream, device), gemm, attributes);
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // x
      .template Arg<Buffer>()          // weight
      .template Arg<Buffer>()          // bias
      .template Arg<Buffer>()          // indices
      .template Arg<Buffer>()          // slots
      .template Ret<ffi::AnyBuffer>()  // y
      .template Ret<ffi::AnyBuffer>()  // packed
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(KnnForward, Run, Binding);

}  // namespace knnconv::gpu
