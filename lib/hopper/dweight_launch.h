// Launches of the tiles that exist. Included by one source for each element type.
#pragma once

#include "gpu/launch.h"
#include "hopper/dweight_gather.h"
#include "hopper/dweight_kernel.h"

namespace knnconv::hopper {

// Launches the kernel of kDweightTiles[tile].
template <typename T>
gpu::Status LaunchDweight(const gpu::LaunchSite& site, int tile, const CUtensorMap& x, const CUtensorMap& g,
                          const DweightTask& task);

template <typename T>
gpu::Status LaunchDweightTile(const gpu::LaunchSite& site, int tile, const CUtensorMap& x, const CUtensorMap& g,
                              const DweightTask& task) {
  const DweightTileSize& size = kDweightTiles[tile];
#define KNNCONV_LAUNCH_GATHER(...)                                                                                    \
  if (task.kind == TapsKind::kGathered && size == DweightTileSize{__VA_ARGS__}) {                                     \
    using Tile = GatherTile<DweightTile<__VA_ARGS__>>;                                                                \
    return gpu::Launch<DweightGatherKernel<T, Tile>, Tile::kSharedBytes>(site, task.schedule.blocks, Tile::kThreads,  \
                                                                         g, task);                                    \
  }
  KNNCONV_FOR_EACH_GATHER_TILE(KNNCONV_LAUNCH_GATHER)
#undef KNNCONV_LAUNCH_GATHER
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
