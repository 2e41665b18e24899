#include "gpu/dweight_choice.h"

#include <type_traits>

#include "gpu/arithmetic.h"
#include "gpu/dweight_reduce.h"
#include "gpu/halo_dweight.h"

namespace knnconv::gpu {
namespace {

// What the portable kernels look at of a kind of taps.
struct TapsSizes {
  int64_t positions;  // of one member and batch entry; of all slots together where they have lists of their own
  bool by_slot;       // they have
  bool has_sources;
};

TapsSizes SizesOf(const DenseTaps& taps) {
  return {int64_t{taps.out_size[0]} * taps.out_size[1], false, taps.in_size[0] > 0 && taps.in_size[1] > 0};
}
TapsSizes SizesOf(const ColumnTaps& taps) { return {taps.table.outputs, false, taps.table.sources > 0}; }
TapsSizes SizesOf(const SlotTaps& taps) {
  return {int64_t{taps.table.outputs} * taps.table.neighbours, true, taps.table.sources > 0};
}

DweightStaging StagingOf(const Dweight& dweight, const DweightChoice& wanted) {
  if (wanted.vector == 0 || dweight.columns % kVector != 0 || !IsAligned(dweight.g)) return DweightStaging::kScalar;
  const bool source_vectors =
      dweight.x_type == dweight.g_type && dweight.channels % kVector == 0 && IsAligned(dweight.x);
  if (!wanted.asynchronous) return source_vectors ? DweightStaging::kRegisters : DweightStaging::kScalar;
  return source_vectors ? DweightStaging::kBoth : DweightStaging::kCotangent;
}

// The tile by shape, or as wanted. sm_75 and AMD have 64 KB of shared memory.
Status TileOf(const DweightSizes& sizes, DweightStaging staging, const Device& device, const DweightChoice& wanted,
              TileShape* tile) {
  const bool has_middle_rows = staging == DweightStaging::kBoth;
  const bool has_one_height = staging == DweightStaging::kRegisters;
  *tile = ChooseTile(sizes, has_middle_rows);
  if (wanted.rows > 0) tile->rows = wanted.rows;
  if (has_one_height && wanted.rows <= 0) tile->rows = kRowsThroughRegisters;
  if (wanted.columns > 0) tile->columns = wanted.columns;
  const auto fits = [&] { return DweightSharedBytes(tile->rows, tile->columns) <= device.shared_bytes; };
  while (wanted.columns <= 0 && tile->columns > 32 && !fits()) tile->columns /= 2;
  while (wanted.rows <= 0 && !has_one_height && tile->rows > 32 && !fits()) {
    tile->rows = has_middle_rows ? tile->rows / 2 : 32;
  }
  if (!fits()) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "the tile fits into the device's shared memory"};
  }
  if (has_one_height && tile->rows != kRowsThroughRegisters) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__,
            "rows are 64 where operands are staged through registers"};
  }
  if (tile->rows == 64 && !has_middle_rows && !has_one_height) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__,
            "rows are 32 or 128 where an operand is staged by elements"};
  }
  return {};
}

Status ChoosePortable(const Dweight& dweight, const TapsSizes& taps, const Device& device, const DweightChoice& wanted,
                      DweightLaunch* launch) {
  const int64_t positions = dweight.shapes.members.count() * dweight.batch * taps.positions;
  const DweightSizes sizes{dweight.shapes.groups.count(), positions, dweight.slots, dweight.channels, dweight.columns,
                           taps.by_slot, dweight.db != nullptr, dweight.partial_elements};
  *launch = {};
  launch->staging = StagingOf(dweight, wanted);
  KNNCONV_GPU_RETURN_IF_ERROR(TileOf(sizes, launch->staging, device, wanted, &launch->tile));
  const DweightSplit split = SplitDweight(sizes, launch->tile, device.multiprocessors, wanted.slices);
  const int64_t weight = WeightPartials(dweight, split.slices), sums = sizes.groups * split.slices;
  if (weight + sums * split.bias_parts * dweight.columns > dweight.partial_elements) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for a slice of each group"};
  }
  DweightGrid& grid = launch->grid;
  grid.row_tiles = static_cast<uint32_t>(split.row_tiles);
  grid.column_tiles = static_cast<uint32_t>(split.column_tiles);
  grid.slices = static_cast<uint32_t>(split.slices);
  grid.tiles_of_slot = static_cast<int32_t>(CeilDiv(dweight.channels, launch->tile.rows));
  grid.bias_parts = static_cast<int32_t>(split.bias_parts);
  grid.bias_partials = dweight.partials + weight;
  grid.vector_partials = dweight.columns % 4 == 0 && IsAligned(dweight.partials);
  launch->blocks = sums * split.row_tiles * split.column_tiles;
  return {};
}

// Whether Hopper's halo kernels are slower than those of every architecture: they multiply taps of 8 channels as if
// these were 16, and up to 64 columns as if these were 64.
bool HasHalfTaps(const Dweight& dweight) { return dweight.channels == 8 && dweight.columns <= 32; }

template <typename Taps>
Status Choose(const Dweight& dweight, const Taps& taps, const Device& device, const DweightChoice& wanted,
              DweightDecision* decision) {
  if (dweight.g_type == Element::kBF16 && device.capability < 80) {  // empty kernels; Python asks before
    return {gpuErrorNotSupported, __FILE__, __LINE__, "products of bfloat16"};
  }
  // Where there is nothing to multiply, the portable kernels write the zeros for all.
  const TapsSizes sizes = SizesOf(taps);
  const bool products = dweight.shapes.groups.count() * dweight.shapes.members.count() > 0 &&
                        dweight.batch * sizes.positions > 0 && sizes.has_sources && dweight.slots > 0 &&
                        dweight.channels > 0 && dweight.columns > 0;
  if (!products) return ChoosePortable(dweight, sizes, device, wanted, &decision->emplace<DweightLaunch>());
  if constexpr (kHasHaloKernels && std::is_same_v<Taps, DenseTaps>) {
    if (wanted.kernel == KernelFamily::kByShape && HasHalfTaps(dweight) &&
        ChooseHalo(dweight, taps, device, /*forced=*/false, &decision->emplace<HaloDweightPlan>())) {
      return {};
    }
  }
  if constexpr (kHasHopperKernels) {
    const bool forced = wanted.kernel == KernelFamily::kHopper;
    const bool allowed = Allows(wanted.kernel, KernelFamily::kHopper);
    if constexpr (std::is_same_v<Taps, DenseTaps>) {
      auto& plan = decision->emplace<hopper::HaloDweightPlan>();
      if (allowed && hopper::ChooseHalo(dweight, taps, device, /*forced=*/false, &plan)) return {};
    }
    if (allowed &&
        hopper::ChooseDweight(dweight, taps, device, forced, &decision->emplace<hopper::DweightPlan>())) {
      return {};
    }
  }
  [[maybe_unused]] const bool halo = kHasHaloKernels && Allows(wanted.kernel, KernelFamily::kHalo);
  [[maybe_unused]] const bool halo_forced = wanted.kernel == KernelFamily::kHalo;
  if constexpr (kHasHaloKernels && std::is_same_v<Taps, DenseTaps>) {
    if (halo && ChooseHalo(dweight, taps, device, halo_forced, &decision->emplace<HaloDweightPlan>())) return {};
  }
  if constexpr (kHasHaloKernels && std::is_same_v<Taps, ColumnTaps>) {
    if (halo && ChooseStem(dweight, taps, device, halo_forced, &decision->emplace<StemDweightPlan>())) return {};
  }
  if (!Allows(wanted.kernel, KernelFamily::kPortable)) return Refused(wanted.kernel, __FILE__, __LINE__);
  return ChoosePortable(dweight, sizes, device, wanted, &decision->emplace<DweightLaunch>());
}

}  // namespace

Status ChooseDweight(const Dweight& dweight, const DenseTaps& taps, const Device& device, const DweightChoice& wanted,
                     DweightDecision* decision) {
  return Choose(dweight, taps, device, wanted, decision);
}

Status ChooseDweight(const Dweight& dweight, const ColumnTaps& taps, const Device& device, const DweightChoice& wanted,
                     DweightDecision* decision) {
  return Choose(dweight, taps, device, wanted, decision);
}

Status ChooseDweight(const Dweight& dweight, const SlotTaps& taps, const Device& device, const DweightChoice& wanted,
                     DweightDecision* decision) {
  return Choose(dweight, taps, device, wanted, decision);
}

}  // namespace knnconv::gpu
