// dx[b, n, :] = sum over taps (m, slot) of source n:  g[b, m, :] @ weight[slot]^T
#include "gpu/knn_dinput.h"

#include "gpu/handlers.h"
#include "gpu/hub_sums.h"
#include "gpu/operands.h"

namespace knnconv::gpu {

ffi::Error RunKnnDinput(const LaunchSite& site, const Buffer& g, const Buffer& weight, const Buffer& source_offsets,
                        const Buffer& source_rows, const Buffer& source_slots, const Buffer& dx, const Buffer& packed,
                        const TileChoice& tile) {
  const Dims w = weight.dimensions(), in = g.dimensions();
  const Dims offsets = source_offsets.dimensions(), rows = source_rows.dimensions(), slots = source_slots.dimensions();
  KNNCONV_CHECK(w.size() >= 3);
  const int rank = static_cast<int>(w.size()) - 3;
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {in, w, offsets, rows, slots}, &groups));
  TapGemm gemm;
  KNNCONV_RETURN_IF_ERROR(MakeTapGemm(g, weight, dx, 2, /*transposed=*/true, groups, &gemm));
  KNNCONV_CHECK(static_cast<int>(offsets.size()) == rank + 2 && static_cast<int>(rows.size()) == rank + 1);
  KNNCONV_CHECK(offsets[rank] == gemm.nodes + 1 && offsets[rank + 1] == 2 && rows == slots);
  for (const Buffer* operand : {&source_offsets, &source_rows, &source_slots}) {
    KNNCONV_CHECK(operand->element_type() == ffi::DataType::S32);
  }
  const int64_t taps = rows[rank];
  gemm.kind = Taps::kSources;
  gemm.table.sources = static_cast<const int32_t*>(source_rows.untyped_data());
  gemm.table.slots = static_cast<const int32_t*>(source_slots.untyped_data());
  gemm.table.offsets = static_cast<const int32_t*>(source_offsets.untyped_data());
  gemm.table.taps = taps;
  gemm.table.source_groups = StridesOf(rank, rows, taps);
  gemm.table.slot_groups = StridesOf(rank, slots, taps);
  gemm.table.offset_groups = StridesOf(rank, offsets, offsets[rank] * 2);
  KNNCONV_CHECK(packed.element_type() == ffi::DataType::F32);
  KNNCONV_CHECK(static_cast<int64_t>(packed.element_count()) >= HubPartials(gemm, taps));
  gemm.workspace = packed.untyped_data();
  gemm.workspace_bytes = static_cast<int64_t>(packed.element_count()) * 4;
  bool leaves_hubs;
  KNNCONV_RETURN_IF_ERROR(ToError(RunTapGemm(site, gemm, tile, &leaves_hubs)));
  if (!leaves_hubs) return ffi::Error::Success();
  return ToError(RunHubSums(site, gemm, taps, static_cast<float*>(packed.untyped_data())));
}

namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer g, Buffer weight, Buffer source_offsets, Buffer source_rows,
               Buffer source_slots, ResultBuffer dx, ResultBuffer packed, ffi::Dictionary attributes) {
  TileChoice tile;
  KNNCONV_RETURN_IF_ERROR(ReadTileChoice(attributes, &tile));
  return RunKnnDinput(SiteOf<kStage>(stream, device), g, weight, source_offsets, source_rows, source_slots, *dx,
                      *packed, tile);
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // g
      .template Arg<Buffer>()          // weight
      .template Arg<Buffer>()          // source_offsets
      .template Arg<Buffer>()          // source_rows
      .template Arg<Buffer>()          // source_slots
      .template Ret<ffi::AnyBuffer>()  // dx
      .template Ret<ffi::AnyBuffer>()  // packed
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(KnnDinput, Run, Binding);

}  // namespace knnconv::gpu
