// From a Dweight to its launches: tile, split and kernel by shape. Included by one source for each kind of taps.
#pragma once

#include <cstdint>

#include "gpu/arithmetic.h"
#include "gpu/device.h"
#include "gpu/dweight.h"
#include "gpu/dweight_kernel.h"
#include "gpu/dweight_plan.h"
#include "gpu/dweight_reduce.h"
#ifdef KNNCONV_HOPPER
#include "hopper/dweight.h"
#endif

namespace knnconv::gpu {
namespace internal {

inline bool HasSources(const DenseTaps& taps) { return taps.in_size[0] > 0 && taps.in_size[1] > 0; }
inline bool HasSources(const ColumnTaps& taps) { return taps.table.sources > 0; }
inline bool HasSources(const SlotTaps& taps) { return taps.table.sources > 0; }

// Which operands are staged 16 bytes at a time. g goes first: where x alone could be, neither is.
enum class Staging { kScalar, kCotangent, kBoth };

template <typename T, typename Taps>
Status LaunchChosen(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const TileShape& tile,
                    const DweightGrid& grid, Staging staging, int64_t blocks) {
#define KNNCONV_DWEIGHT_TILE(kRows, kColumns, kStaging, kSourceVectors, kCotangentVectors)                            \
  if (tile.rows == kRows && tile.columns == kColumns && staging == kStaging) {                                        \
    using Tile = DweightTile<kRows, kColumns>;                                                                        \
    return Launch<DweightKernel<T, Taps, Tile, kSourceVectors, kCotangentVectors>, Tile::kSharedBytes>(               \
        site, blocks, Tile::kThreads, dweight, taps, grid);                                                           \
  }
#define KNNCONV_DWEIGHT_VECTOR_TILE(kRows, kColumns) KNNCONV_DWEIGHT_TILE(kRows, kColumns, Staging::kBoth, true, true)
#define KNNCONV_DWEIGHT_SCALAR_TILES(kRows, kColumns)                          \
  KNNCONV_DWEIGHT_TILE(kRows, kColumns, Staging::kCotangent, false, true)      \
  KNNCONV_DWEIGHT_TILE(kRows, kColumns, Staging::kScalar, false, false)
  KNNCONV_DWEIGHT_VECTOR_TILE(32, 32)
  KNNCONV_DWEIGHT_VECTOR_TILE(32, 64)
  KNNCONV_DWEIGHT_VECTOR_TILE(32, 128)
  KNNCONV_DWEIGHT_VECTOR_TILE(64, 32)
  KNNCONV_DWEIGHT_VECTOR_TILE(64, 64)
  KNNCONV_DWEIGHT_VECTOR_TILE(64, 128)
  KNNCONV_DWEIGHT_VECTOR_TILE(128, 32)
  KNNCONV_DWEIGHT_VECTOR_TILE(128, 64)
  KNNCONV_DWEIGHT_VECTOR_TILE(128, 128)
  KNNCONV_DWEIGHT_SCALAR_TILES(32, 32)
  KNNCONV_DWEIGHT_SCALAR_TILES(32, 64)
  KNNCONV_DWEIGHT_SCALAR_TILES(32, 128)
  KNNCONV_DWEIGHT_SCALAR_TILES(128, 32)
  KNNCONV_DWEIGHT_SCALAR_TILES(128, 64)
  KNNCONV_DWEIGHT_SCALAR_TILES(128, 128)
#undef KNNCONV_DWEIGHT_SCALAR_TILES
#undef KNNCONV_DWEIGHT_VECTOR_TILE
#undef KNNCONV_DWEIGHT_TILE
  return {gpuErrorInvalidConfiguration, __FILE__, __LINE__,
          "a tile of 32, 64 or 128 rows and columns; not of 64 rows where an operand is staged by elements"};
}

}  // namespace internal

// `positions` of all members, and of all slots together where they have lists of their own (`by_slot`).
template <typename Taps>
Status LaunchDweight(const LaunchSite& site, const Dweight& dweight, const Taps& taps, int64_t positions, bool by_slot,
                     const DweightChoice& choice) {
  using internal::Staging;
#ifdef KNNCONV_HOPPER
  if (Allows(choice.kernel, KernelFamily::kHopper)) {
    bool takes = false;
    KNNCONV_GPU_RETURN_IF_ERROR(hopper::TakesDweight(site.device, dweight, taps, &takes));
    if (takes && (choice.kernel == KernelFamily::kHopper || hopper::PaysDweight(dweight, taps))) {
      return hopper::RunDweight(site, dweight, taps);
    }
  }
#endif
  // Where there is nothing to multiply, the portable kernels write the zeros for all.
  const bool multiplies = positions > 0 && internal::HasSources(taps) && dweight.slots > 0 && dweight.channels > 0;
  if (multiplies && dweight.columns > 0 && !Allows(choice.kernel, KernelFamily::kPortable)) {
    return Refused(choice.kernel, __FILE__, __LINE__);
  }
  const bool vectors = choice.vector != 0;
  const bool cotangent_vectors = vectors && dweight.columns % kVector == 0 && IsAligned(dweight.g);
  const bool source_vectors = vectors && dweight.x_type == dweight.g_type && dweight.channels % kVector == 0 &&
                              IsAligned(dweight.x);
  const Staging staging = !cotangent_vectors ? Staging::kScalar : source_vectors ? Staging::kBoth : Staging::kCotangent;

  const DweightSizes sizes{dweight.shapes.groups.count(), positions, dweight.slots, dweight.channels, dweight.columns,
                           by_slot, dweight.db != nullptr, dweight.partial_elements};
  TileShape tile = ChooseTile(sizes, staging == Staging::kBoth);
  if (choice.rows > 0) tile.rows = choice.rows;
  if (choice.columns > 0) tile.columns = choice.columns;
  Device device;
  KNNCONV_GPU_RETURN_IF_ERROR(GetDevice(site.device, &device));
  // sm_75 and AMD have 64 KB.
  while (DweightSharedBytes(tile.rows, tile.columns) > device.shared_bytes && tile.rows * tile.columns > 32 * 32) {
    if (tile.columns > 32) {
      tile.columns /= 2;
    } else {
      tile.rows = staging == Staging::kBoth ? tile.rows / 2 : 32;
    }
  }
  const DweightSplit split = SplitDweight(sizes, tile, device.multiprocessors, choice.slices);

  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  const int64_t sums = sizes.groups * split.slices;
  if (sums * (weight + split.bias_parts * dweight.columns) > dweight.partial_elements) {
    return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "partials have room for a slice of each group"};
  }
  DweightGrid grid;
  grid.row_tiles = static_cast<uint32_t>(split.row_tiles);
  grid.column_tiles = static_cast<uint32_t>(split.column_tiles);
  grid.slices = static_cast<uint32_t>(split.slices);
  grid.tiles_of_slot = static_cast<int32_t>(CeilDiv(dweight.channels, tile.rows));
  grid.bias_parts = static_cast<int32_t>(split.bias_parts);
  grid.bias_partials = dweight.partials + sums * weight;
  grid.vector_partials = dweight.columns % 4 == 0 && IsAligned(dweight.partials);
  const int64_t blocks = sums * split.row_tiles * split.column_tiles;
  KNNCONV_GPU_RETURN_IF_ERROR(
      dweight.g_type == Element::kF16
          ? internal::LaunchChosen<Half>(site, dweight, taps, tile, grid, staging, blocks)
          : internal::LaunchChosen<BFloat>(site, dweight, taps, tile, grid, staging, blocks));
  return RunReduce(site, sizes.groups, {dweight.partials, split.slices, weight, dweight.dw, dweight.dw_type},
                   {grid.bias_partials, split.slices * split.bias_parts, dweight.db != nullptr ? dweight.columns : 0,
                    dweight.db, dweight.db_type});
}

}  // namespace knnconv::gpu
