// Launches of the tiles that exist. Included by one source for each element type.
#pragma once

#include "gpu/launch.h"
#include "hopper/dweight_column_gather.h"
#include "hopper/dweight_kernel.h"
#include "hopper/dweight_slot_gather.h"

namespace knnconv::hopper {

// Launches the kernel of kDweightTiles[tile].
template <typename T>
gpu::Status LaunchDweight(const gpu::LaunchSite& site, int tile, const CUtensorMap& x, const CUtensorMap& g,
                          const DweightTask& task);

template <typename T, typename Tile, typename Gatherer>
gpu::Status LaunchGather(const gpu::LaunchSite& site, const CUtensorMap& g, const DweightTask& task) {
  constexpr auto kKernel = DweightGatherKernel<T, Tile, Gatherer>;
  return gpu::Launch<kKernel, Tile::kSharedBytes>(site, task.schedule.blocks, Tile::kThreads, g, task);
}

template <typename T>
gpu::Status LaunchDweightTile(const gpu::LaunchSite& site, int tile, const CUtensorMap& x, const CUtensorMap& g,
                              const DweightTask& task) {
  const DweightTileSize& size = kDweightTiles[tile];
#define KNNCONV_LAUNCH_COLUMNS(...)                                                        \
  if (task.kind == TapsKind::kGatheredColumns && size == DweightTileSize{__VA_ARGS__}) {   \
    using Base = DweightTile<__VA_ARGS__>;                                                 \
    using Tile = GatherTile<Base, ColumnTable<Base::kRowBoxes>>;                           \
    return LaunchGather<T, Tile, ColumnGatherer<Tile>>(site, g, task);                     \
  }
  KNNCONV_FOR_EACH_GATHER_TILE(KNNCONV_LAUNCH_COLUMNS)
#undef KNNCONV_LAUNCH_COLUMNS
#define KNNCONV_LAUNCH_SLOTS(...)                                                          \
  if (task.kind == TapsKind::kGatheredSlots && size == DweightTileSize{__VA_ARGS__}) {     \
    using Tile = GatherTile<DweightTile<__VA_ARGS__>, SlotTable>;                          \
    return LaunchGather<T, Tile, SlotGatherer<Tile>>(site, g, task);                       \
  }
  KNNCONV_FOR_EACH_SLOT_GATHER_TILE(KNNCONV_LAUNCH_SLOTS)
#undef KNNCONV_LAUNCH_SLOTS
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
