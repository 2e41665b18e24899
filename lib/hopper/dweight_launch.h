// The tiles that exist, and their launches. Included by one source for each element type.
#pragma once

#include "gpu/launch.h"
#include "hopper/dweight_kernel.h"

namespace knnconv::hopper {

// Warpgroups, row boxes of each, columns, taps. Three warpgroups share 192 or more rows; tables with slots have tiles
// inside one slot, so lower ones serve few channels.
#define KNNCONV_FOR_EACH_DWEIGHT_TILE(apply)                                                                    \
  apply(1, 1, 64, 1) apply(1, 1, 128, 1) apply(1, 1, 256, 1) apply(2, 1, 64, 1) apply(2, 1, 128, 1)             \
  apply(2, 2, 128, 1) apply(2, 1, 256, 1) apply(3, 1, 64, 1) apply(3, 1, 128, 1) apply(3, 1, 192, 1)            \
  apply(3, 1, 64, 3)

inline constexpr DweightTileSize kDweightTiles[] = {
#define KNNCONV_TILE_SIZE(...) {__VA_ARGS__},
    KNNCONV_FOR_EACH_DWEIGHT_TILE(KNNCONV_TILE_SIZE)
#undef KNNCONV_TILE_SIZE
};

inline constexpr int kDweightTileCount = sizeof(kDweightTiles) / sizeof(kDweightTiles[0]);

// Launches the kernel of kDweightTiles[tile].
template <typename T>
gpu::Status LaunchDweight(const gpu::LaunchSite& site, int tile, const CUtensorMap& x, const CUtensorMap& g,
                          const DweightTask& task);

template <typename T>
gpu::Status LaunchDweightTile(const gpu::LaunchSite& site, int tile, const CUtensorMap& x, const CUtensorMap& g,
                              const DweightTask& task) {
  const DweightTileSize& size = kDweightTiles[tile];
#define KNNCONV_LAUNCH_TILE(kWarpgroups, kBoxes, kColumns, kTaps)                                                     \
  if (size == DweightTileSize{kWarpgroups, kBoxes, kColumns, kTaps}) {                                                \
    using Tile = DweightTile<kWarpgroups, kBoxes, kColumns, kTaps>;                                                   \
    return gpu::Launch<DweightKernel<T, Tile>, Tile::kSharedBytes>(site, task.schedule.blocks, Tile::kThreads, x, g,  \
                                                                   task);                                             \
  }
  KNNCONV_FOR_EACH_DWEIGHT_TILE(KNNCONV_LAUNCH_TILE)
#undef KNNCONV_LAUNCH_TILE
  return {};
}

}  // namespace knnconv::hopper
