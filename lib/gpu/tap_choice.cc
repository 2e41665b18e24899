#include "gpu/tap_choice.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/halo.h"
#include "gpu/tap_table.h"

namespace knnconv::gpu {
namespace {

int64_t PixelClasses(const TapGemm& gemm) {
  if (gemm.kind != Taps::kWindow || !gemm.transposed) return 1;
  const WindowTaps& w = gemm.window;
  return int64_t{std::min(w.stride[0], w.out_size[0])} * std::min(w.stride[1], w.out_size[1]);
}

// Row tiles of one class of pixels, or of a group's table; OpenTile takes them apart.
int64_t RowTiles(const TapGemm& gemm, int rows) {
  switch (gemm.kind) {
    case Taps::kColumns:
      return CeilDiv(gemm.batch * gemm.nodes, rows);
    case Taps::kWindow: {
      const WindowTaps& w = gemm.window;
      const int spacing_h = w.transposed ? w.stride[0] : 1, spacing_w = w.transposed ? w.stride[1] : 1;
      return CeilDiv(gemm.batch * CeilDiv(w.out_size[0], spacing_h) * CeilDiv(w.out_size[1], spacing_w), rows);
    }
    default:
      return gemm.batch >= rows ? gemm.nodes * CeilDiv(gemm.batch, rows)
                                : CeilDiv(gemm.nodes, rows / std::max<int64_t>(gemm.batch, 1));
  }
}

int TileColumns(int columns) {
  if (columns <= 32) return 32;
  if (columns <= 64) return 64;
  // A tile of 128 columns gathers the source half as often, which is not worth a fifth of the products.
  const int64_t narrow = CeilDiv(columns, 64) * 64, wide = CeilDiv(columns, 128) * 128;
  return narrow * 5 <= wide * 4 ? 64 : 128;
}

int TileRows(const TapGemm& gemm, int columns, int multiprocessors) {
  const int64_t all = gemm.batch * gemm.nodes;
  if (all <= 16) return 16;
  const bool lists = gemm.kind == Taps::kRows || gemm.kind == Taps::kSources;
  // A tile of lists holds whole nodes: fewer rows where the batch does not fill it.
  if (lists && gemm.batch > 16 && gemm.batch <= 64) return 64;
  const int64_t column_tiles = CeilDiv(gemm.columns, columns);
  const int64_t blocks = gemm.groups.count() * PixelClasses(gemm) * RowTiles(gemm, 128) * column_tiles;
  return blocks < multiprocessors ? 64 : 128;
}

Staging ChooseStaging(const TapGemm& gemm, bool vector, bool asynchronous) {
  if (!vector || !asynchronous || gemm.source_type != gemm.compute_type) return Staging::kAny;
  return HasCells(gemm) ? Staging::kCells : Staging::kAsync;
}

Status ChoosePortable(const TapGemm& gemm, const Device& device, const TileChoice& wanted, TapLaunch* launch) {
  *launch = {};
  const bool vector = wanted.vector != 0;
  const int weight_line = gemm.transposed ? gemm.depth : gemm.columns;
  launch->vector_a = vector && gemm.depth % kChunk == 0 && IsAligned(gemm.source);
  launch->vector_b = vector && weight_line % kChunk == 0 && IsAligned(gemm.weight);
  launch->staging = ChooseStaging(gemm, launch->vector_a && launch->vector_b, wanted.asynchronous);

  launch->columns = wanted.columns > 0 ? wanted.columns : TileColumns(gemm.columns);
  launch->rows = wanted.rows > 0 ? wanted.rows : TileRows(gemm, launch->columns, device.multiprocessors);
  if (launch->staging != Staging::kAsync) launch->rows = kRegisterStagedRows;
  const auto fits = [&] {
    return TapSharedBytes(launch->rows, launch->columns, gemm.transposed, launch->staging) <= device.shared_bytes;
  };
  // sm_75 and AMD have 64 KB.
  if (wanted.rows <= 0 && launch->rows > 64 && !fits()) launch->rows = 64;
  while (wanted.columns <= 0 && launch->columns > 32 && !fits()) launch->columns /= 2;
  if (!fits()) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "the tile fits into the device's shared memory"};
  }

  TapGrid& grid = launch->grid;
  grid.depth = Divisor(static_cast<uint32_t>(gemm.depth));
  grid.whole_steps = gemm.depth % kDepth == 0;
  const int64_t row_tiles = RowTiles(gemm, launch->rows), column_tiles = CeilDiv(gemm.columns, launch->columns);
  const int64_t classes = PixelClasses(gemm);
  grid.row_tiles = static_cast<uint32_t>(row_tiles);
  grid.column_tiles = static_cast<uint32_t>(column_tiles);
  grid.classes = static_cast<uint32_t>(classes);
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0;
  launch->blocks = empty ? 0 : gemm.groups.count() * classes * row_tiles * column_tiles;
  return {};
}

// Whether Hopper's halo kernels are slower than those of every architecture: they have results and cotangents of 8 or
// 24 channels in lines of 16 or 32, and with so few the other operand's lines do not make up for it.
bool HasHalfLines(const TapGemm& gemm) {
  const int outputs = gemm.transposed ? gemm.depth : gemm.columns;
  const int channels = gemm.transposed ? gemm.columns : gemm.depth;
  return (outputs == 8 || outputs == 24) && channels >= 8;
}

}  // namespace

Status ChooseTapGemm(const TapGemm& gemm, const Device& device, const TileChoice& wanted, TapDecision* decision) {
  if (gemm.compute_type == Element::kBF16 && device.capability < 80) {  // empty kernels; Python asks before
    return {gpuErrorNotSupported, __FILE__, __LINE__, "products of bfloat16"};
  }
  // Where there is nothing to multiply, the portable kernels write the bias for all.
  const bool products = gemm.groups.count() > 0 && gemm.depth > 0 && gemm.source_rows > 0 && gemm.slots > 0 &&
                        gemm.batch * gemm.nodes > 0 && gemm.columns > 0;
  if (!products) return ChoosePortable(gemm, device, wanted, &decision->emplace<TapLaunch>());
  if constexpr (kHasHaloKernels) {
    if (wanted.kernel == KernelFamily::kByShape && HasHalfLines(gemm) &&
        ChooseHalo(gemm, device, /*forced=*/false, &decision->emplace<HaloPlan>())) {
      return {};
    }
  }
  if constexpr (kHasHopperKernels) {
    const bool forced = wanted.kernel == KernelFamily::kHopper;
    const auto choose_halo = [&](bool always) {
      return hopper::ChooseHalo(gemm, device, always, &decision->emplace<hopper::HaloPlan>());
    };
    if (Allows(wanted.kernel, KernelFamily::kHopper) &&
        (choose_halo(false) ||
         hopper::ChooseStem(gemm, device, forced, &decision->emplace<hopper::StemDinputPlan>()) ||
         hopper::ChooseForm(gemm, device, forced, &decision->emplace<hopper::TapForm>()) ||
         (forced && choose_halo(true)))) {
      return {};
    }
  }
  if constexpr (kHasHaloKernels) {
    const bool forced = wanted.kernel == KernelFamily::kHalo;
    if (Allows(wanted.kernel, KernelFamily::kHalo) &&
        (ChooseHalo(gemm, device, forced, &decision->emplace<HaloPlan>()) ||
         ChooseStem(gemm, device, forced, &decision->emplace<StemPlan>()) ||
         ChooseStem(gemm, device, forced, &decision->emplace<StemDinputPlan>()))) {
      return {};
    }
  }
  if (!Allows(wanted.kernel, KernelFamily::kPortable)) return Refused(wanted.kernel, __FILE__, __LINE__);
  return ChoosePortable(gemm, device, wanted, &decision->emplace<TapLaunch>());
}

}  // namespace knnconv::gpu
