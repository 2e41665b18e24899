// (dx, dw, db) of a table in one call: dinput's launches, then dweight's.
#include "gpu/choice_attributes.h"
#include "gpu/handlers.h"
#include "gpu/knn_dinput.h"
#include "gpu/knn_dweight.h"

namespace knnconv::gpu {
namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer g, Buffer x, Buffer weight, Buffer indices, Buffer slots,
               Buffer source_offsets, Buffer source_rows, Buffer source_slots, Buffer slot_offsets, Buffer slot_rows,
               Buffer slot_sources, ResultBuffer dx, ResultBuffer dw, ResultBuffer db, ResultBuffer packed,
               ResultBuffer partials, ffi::Dictionary attributes) {
  const auto zero_empty_rows = attributes.get<int64_t>("zero_empty_rows");
  if (zero_empty_rows.has_error()) return zero_empty_rows.error();
  TileChoice dinput;
  DweightChoice dweight;
  KNNCONV_RETURN_IF_ERROR(ReadTileChoice(attributes, &dinput));
  KNNCONV_RETURN_IF_ERROR(ReadDweightChoice(attributes, &dweight));
  const LaunchSite site = SiteOf<kStage>(stream, device);
  KNNCONV_RETURN_IF_ERROR(
      RunKnnDinput(site, g, weight, source_offsets, source_rows, source_slots, *dx, *packed, dinput));
  return RunKnnDweight(site, x, g, {indices, slots, slot_offsets, slot_rows, slot_sources}, *dw, *db, *partials,
                       *zero_empty_rows != 0, dweight);
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // g
      .template Arg<Buffer>()          // x
      .template Arg<Buffer>()          // weight
      .template Arg<Buffer>()          // indices
      .template Arg<Buffer>()          // slots
      .template Arg<Buffer>()          // source_offsets
      .template Arg<Buffer>()          // source_rows
      .template Arg<Buffer>()          // source_slots
      .template Arg<Buffer>()          // slot_offsets
      .template Arg<Buffer>()          // slot_rows
      .template Arg<Buffer>()          // slot_sources
      .template Ret<ffi::AnyBuffer>()  // dx
      .template Ret<ffi::AnyBuffer>()  // dw
      .template Ret<ffi::AnyBuffer>()  // db
      .template Ret<ffi::AnyBuffer>()  // packed
      .template Ret<ffi::AnyBuffer>()  // partials
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(KnnBackward, Run, Binding);

}  // namespace knnconv::gpu
