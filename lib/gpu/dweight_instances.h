// Defines LaunchDweight; included by one source for each kind of taps.
#pragma once

#include "gpu/dweight_kernel.h"
#include "gpu/dweight_launch.h"

namespace knnconv::gpu {
namespace internal {

template <typename T, typename Taps>
Status LaunchTile(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const DweightLaunch& launch) {
#define KNNCONV_DWEIGHT_TILE(kRows, kColumns, kStaging)                                             \
  if (launch.tile.rows == kRows && launch.tile.columns == kColumns && launch.staging == kStaging) { \
    using Tile = DweightTile<kRows, kColumns>;                                                      \
    return Launch<DweightKernel<T, Taps, Tile, kStaging>, Tile::kSharedBytes>(                      \
        site, launch.blocks, Tile::kThreads, dweight, taps, launch.grid);                           \
  }
#define KNNCONV_DWEIGHT_VECTOR_TILE(kRows, kColumns) KNNCONV_DWEIGHT_TILE(kRows, kColumns, DweightStaging::kBoth)
#define KNNCONV_DWEIGHT_SCALAR_TILES(kRows, kColumns)                   \
  KNNCONV_DWEIGHT_TILE(kRows, kColumns, DweightStaging::kCotangent)     \
  KNNCONV_DWEIGHT_TILE(kRows, kColumns, DweightStaging::kScalar)
#define KNNCONV_DWEIGHT_REGISTER_TILE(kColumns) \
  KNNCONV_DWEIGHT_TILE(kRowsThroughRegisters, kColumns, DweightStaging::kRegisters)
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
  KNNCONV_DWEIGHT_REGISTER_TILE(32)
  KNNCONV_DWEIGHT_REGISTER_TILE(64)
  KNNCONV_DWEIGHT_REGISTER_TILE(128)
#undef KNNCONV_DWEIGHT_REGISTER_TILE
#undef KNNCONV_DWEIGHT_SCALAR_TILES
#undef KNNCONV_DWEIGHT_VECTOR_TILE
#undef KNNCONV_DWEIGHT_TILE
  return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "a tile that exists"};
}

}  // namespace internal

template <typename Taps>
Status LaunchDweight(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const DweightLaunch& launch) {
  return dweight.g_type == Element::kF16 ? internal::LaunchTile<Half>(site, dweight, taps, launch)
                                         : internal::LaunchTile<BFloat>(site, dweight, taps, launch);
}

}  // namespace knnconv::gpu
