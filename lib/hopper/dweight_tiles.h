// Steps, boxes and tiles of a weight gradient on Hopper: the sizes that plans and kernels share.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::hopper {

inline constexpr int kStep = 64;                          // positions of a step
inline constexpr int kBox = 64;                           // rows or columns of a box
inline constexpr int kLineBytes = kBox * 2;               // of a box, in shared memory
inline constexpr int kBoxBytes = kStep * kLineBytes;
inline constexpr int kMostStripLines = kStep + 8;         // a strip's positions and those that taps reach behind them
inline constexpr int kBiasSums = 256;                     // of db, that a part of a tile or a block's rows leave
inline constexpr int kBiasWarps = 2;                      // of a thread block

// A thread block's tile: `row_boxes` by `columns`; each warpgroup has some of the boxes and all columns. A box of x is
// of one slot or, of a dense convolution, a *strip*: all `taps` of a kernel row read it, each moved by some pixels.
//
// A warpgroup multiplies blocks of 64 rows by `width` columns. Strips are the columns of these products, as each tap
// sees them, and dw's columns their rows.
struct DweightTileSize {
  int warpgroups, warpgroup_boxes, columns, taps;

  constexpr bool operator==(const DweightTileSize& other) const {
    return warpgroups == other.warpgroups && warpgroup_boxes == other.warpgroup_boxes && columns == other.columns &&
           taps == other.taps;
  }
  KNNCONV_HOST_DEVICE constexpr bool has_strips() const { return taps > 1; }
  KNNCONV_HOST_DEVICE constexpr int row_boxes() const { return warpgroups * warpgroup_boxes; }
  KNNCONV_HOST_DEVICE constexpr int width() const { return has_strips() ? taps * kBox : columns; }
  KNNCONV_HOST_DEVICE constexpr int64_t elements() const { return int64_t{row_boxes()} * taps * kBox * columns; }
};

// Whether threads of three warpgroups have so few sums that half of a multiprocessor's registers do for all of them.
KNNCONV_HOST_DEVICE constexpr bool HasFewSums(const DweightTileSize& size) {
  return size.warpgroups == 3 && size.warpgroup_boxes == 1 && size.width() == kBox;
}

// Whether products leave registers for a second warpgroup that gathers rows of x.
KNNCONV_HOST_DEVICE constexpr bool LeavesRegisters(const DweightTileSize& size) { return size.width() < 256; }

// Teams of kBiasWarps warps of a block that sum rows of g from memory: two warps that have nothing else to do, or all
// that multiply.
KNNCONV_HOST_DEVICE constexpr int RowTeams(const DweightTileSize& size, bool gathers) {
  return gathers && !LeavesRegisters(size) ? size.warpgroups * 4 / kBiasWarps : 1;
}

// How many of kBiasSums are of one column, over different positions: those of column c and the next three are the quads
// c / 4 + i * columns / 4.
KNNCONV_HOST_DEVICE constexpr int BiasParts(int columns) { return columns < kBiasSums ? kBiasSums / columns : 1; }

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

// Those of them that also gather rows of x, over tables without slots and with slots (dweight_gather.h).
#define KNNCONV_FOR_EACH_GATHER_TILE(apply) \
  apply(3, 1, 64, 1) apply(3, 1, 128, 1) apply(2, 2, 128, 1) apply(2, 1, 256, 1)
#define KNNCONV_FOR_EACH_SLOT_GATHER_TILE(apply) \
  apply(1, 1, 64, 1) apply(1, 1, 128, 1) apply(2, 1, 128, 1) apply(2, 1, 256, 1)

constexpr bool CanGather(const DweightTileSize& size, bool has_slots) {
#define KNNCONV_IS_TILE(...) \
  if (size == DweightTileSize{__VA_ARGS__}) return true;
  if (has_slots) {
    KNNCONV_FOR_EACH_SLOT_GATHER_TILE(KNNCONV_IS_TILE)
  } else {
    KNNCONV_FOR_EACH_GATHER_TILE(KNNCONV_IS_TILE)
  }
#undef KNNCONV_IS_TILE
  return false;
}

inline constexpr int kDweightTileCount = sizeof(kDweightTiles) / sizeof(kDweightTiles[0]);

}  // namespace knnconv::hopper
