// Steps, boxes and tiles of a weight gradient on Hopper: the sizes that plans and kernels share.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::hopper {

inline constexpr int kStep = 64;                          // positions of a step
inline constexpr int kBox = 64;                           // rows or columns of a box
inline constexpr int kBoxBytes = kStep * kBox * 2;        // in shared memory
inline constexpr int kBiasSums = 256;                     // of db, that a part of a tile or a block's rows leave
inline constexpr int kBiasWarps = 2;                      // of a thread block

// A thread block's tile: `row_boxes` by `columns`; each warpgroup has some of the boxes and all columns.
struct DweightTileSize {
  int warpgroups, warpgroup_boxes, columns;

  KNNCONV_HOST_DEVICE int row_boxes() const { return warpgroups * warpgroup_boxes; }
  KNNCONV_HOST_DEVICE int64_t elements() const { return int64_t{row_boxes()} * kBox * columns; }
};

// How many of them are of one column, over different positions: those of column c and the next three are the quads
// c / 4 + i * columns / 4.
KNNCONV_HOST_DEVICE constexpr int BiasParts(int columns) { return columns < kBiasSums ? kBiasSums / columns : 1; }

// Warpgroups, row boxes of each, columns. Three warpgroups share 192 or more rows; tables with slots have tiles inside
// one slot, so lower ones serve few channels.
#define KNNCONV_FOR_EACH_DWEIGHT_TILE(apply) \
  apply(1, 1, 64) apply(1, 1, 128) apply(1, 1, 256) apply(2, 1, 64) apply(2, 1, 128) apply(2, 2, 128) apply(2, 1, 256) \
  apply(3, 1, 64) apply(3, 1, 128) apply(3, 1, 192)

inline constexpr DweightTileSize kDweightTiles[] = {
#define KNNCONV_TILE_SIZE(warpgroups, boxes, columns) {warpgroups, boxes, columns},
    KNNCONV_FOR_EACH_DWEIGHT_TILE(KNNCONV_TILE_SIZE)
#undef KNNCONV_TILE_SIZE
};

inline constexpr int kDweightTileCount = sizeof(kDweightTiles) / sizeof(kDweightTiles[0]);

}  // namespace knnconv::hopper
