// dw[v, c, o] = sum over b and taps (m, source) of slot v:  x[b, source, c] * g[b, m, o]
#include "gpu/knn_dweight.h"

#include "gpu/dweight_call.h"
#include "gpu/handlers.h"

namespace knnconv::gpu {
namespace {

const int32_t* Words(const Buffer& buffer) { return static_cast<const int32_t*>(buffer.untyped_data()); }

GroupStrides MatrixStrides(int rank, Dims dims) { return StridesOf(rank, dims, Product(dims, rank, dims.size())); }

}  // namespace

ffi::Error RunKnnDweight(const LaunchSite& site, const Buffer& x, const Buffer& g, const TableOperands& table,
                         const Buffer& dw, const Buffer& db, const Buffer& partials, bool zero_empty_rows,
                         const DweightChoice& choice) {
  const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw.dimensions(), id = table.indices.dimensions();
  const Dims vd = table.slots.dimensions(), od = table.slot_offsets.dimensions();
  const Dims rd = table.slot_rows.dimensions(), sd = table.slot_sources.dimensions();
  KNNCONV_CHECK(wd.size() >= 3);
  const int rank = static_cast<int>(wd.size()) - 3;
  KNNCONV_CHECK(static_cast<int>(xd.size()) >= rank + 2 && gd.size() == xd.size());
  KNNCONV_CHECK(static_cast<int>(id.size()) == rank + 2 && table.indices.element_type() == ffi::DataType::S32);
  const bool has_slots = vd.size() == id.size();
  Groups groups;
  if (has_slots) {
    KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {xd, gd, id, vd, od, rd, sd}, &groups));
  } else {
    KNNCONV_CHECK(IsAbsent(table.slots));
    KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {xd, gd, id}, &groups));
  }
  Dweight dweight;
  KNNCONV_RETURN_IF_ERROR(MakeDweight(groups, 1, 1, x, g, dw, db, partials, &dweight));
  const int64_t sources = xd[xd.size() - 2], outputs = id[rank], neighbours = id[rank + 1];
  KNNCONV_CHECK(gd[gd.size() - 2] == outputs);
  KNNCONV_CHECK(sources <= INT32_MAX && outputs <= INT32_MAX && neighbours <= INT32_MAX && wd[rank] < INT32_MAX);
  const NeighborTable rows{Words(table.indices),
                           has_slots ? Words(table.slots) : nullptr,
                           static_cast<int32_t>(sources),
                           static_cast<int32_t>(outputs),
                           static_cast<int32_t>(neighbours),
                           static_cast<int32_t>(wd[rank]),
                           zero_empty_rows};
  if (!has_slots) {
    KNNCONV_CHECK(wd[rank] == neighbours);
    return ToError(RunDweight(site, dweight, ColumnTaps{rows, MatrixStrides(rank, id)}, choice));
  }
  KNNCONV_CHECK(vd[rank] == outputs && vd[rank + 1] == neighbours);
  KNNCONV_CHECK(static_cast<int>(od.size()) == rank + 2 && od[rank] == wd[rank] + 1 && od[rank + 1] == 2);
  KNNCONV_CHECK(static_cast<int>(rd.size()) == rank + 1 && static_cast<int>(sd.size()) == rank + 1);
  KNNCONV_CHECK(rd[rank] == sd[rank]);
  for (const Buffer* operand : {&table.slots, &table.slot_offsets, &table.slot_rows, &table.slot_sources}) {
    KNNCONV_CHECK(operand->element_type() == ffi::DataType::S32);
  }
  SlotTaps taps;
  taps.table = rows;
  taps.offsets = Words(table.slot_offsets);
  taps.rows = Words(table.slot_rows);
  taps.sources = Words(table.slot_sources);
  taps.index_groups = MatrixStrides(rank, id);
  taps.slot_groups = MatrixStrides(rank, vd);
  taps.offset_groups = MatrixStrides(rank, od);
  taps.row_groups = MatrixStrides(rank, rd);
  taps.source_groups = MatrixStrides(rank, sd);
  return ToError(RunDweight(site, dweight, taps, choice));
}

namespace {

template <ffi::ExecutionStage kStage>
ffi::Error Run(gpuStream_t stream, int32_t device, Buffer x, Buffer g, Buffer indices, Buffer slots,
               Buffer slot_offsets, Buffer slot_rows, Buffer slot_sources, ResultBuffer dw, ResultBuffer db,
               ResultBuffer partials, ffi::Dictionary attributes) {
  const auto zero_empty_rows = attributes.get<int64_t>("zero_empty_rows");
  if (zero_empty_rows.has_error()) return zero_empty_rows.error();
  DweightChoice choice;
  KNNCONV_RETURN_IF_ERROR(ReadDweightChoice(attributes, &choice));
  const TableOperands table{indices, slots, slot_offsets, slot_rows, slot_sources};
  return RunKnnDweight(SiteOf<kStage>(stream, device), x, g, table, *dw, *db, *partials, *zero_empty_rows != 0, choice);
}

template <ffi::ExecutionStage kStage>
auto Binding() {
  return BindStage<kStage>()
      .template Arg<Buffer>()          // x
      .template Arg<Buffer>()          // g
      .template Arg<Buffer>()          // indices
      .template Arg<Buffer>()          // slots
      .template Arg<Buffer>()          // slot_offsets
      .template Arg<Buffer>()          // slot_rows
      .template Arg<Buffer>()          // slot_sources
      .template Ret<ffi::AnyBuffer>()  // dw
      .template Ret<ffi::AnyBuffer>()  // db
      .template Ret<ffi::AnyBuffer>()  // partials
      .Attrs();
}

}  // namespace

KNNCONV_DEFINE_HANDLER(KnnDweight, Run, Binding);

}  // namespace knnconv::gpu
