// How a weight gradient is cut into thread blocks: tiles of dw, and slices of the depth that are summed afterwards.
//
// Both follow from shapes and the device's number of multiprocessors, so that a kind of device always gives the same
// bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/arithmetic.h"

namespace knnconv::gpu {

// Positions whose products lie in one chain in the accumulators. Tensor cores do not round these to nearest, so that
// longer chains lose bits: after so many, the chain is added to the slice's partial sum.
inline constexpr int kChainPositions = 2048;

// A tile of dw: rows of the matrix [V * C, O] and columns.
struct TileShape {
  int rows, columns;
};

// Blocks of a tile that share a multiprocessor; the kernels' register budgets are set to it.
constexpr int BlocksPerMultiprocessor(int rows, int columns) {
  return rows * columns >= 128 * 128 ? 2 : rows * columns >= 128 * 64 ? 3 : 4;
}

// Positions of one step of a tile's main loop. Long steps have fewer barriers; tiles of middle size would lose a
// resident block to their room in shared memory.
constexpr int StepPositions(int rows, int columns) {
  return rows * columns >= 128 * 128 || rows * columns <= 64 * 64 ? 64 : 32;
}

inline constexpr int kVector = 8;   // 16-bit elements of a 16-byte copy
inline constexpr int kTilePad = 8;  // elements between rows of a tile: eight rows' 16 bytes lie in different banks
inline constexpr int kDweightStages = 3;

constexpr int DweightSharedBytes(int rows, int columns) {
  return kDweightStages * StepPositions(rows, columns) * (rows + kTilePad + columns + kTilePad) * 2;
}

struct DweightSizes {
  int64_t groups;     // of the result
  int64_t positions;  // of all members; of all slots together where `by_slot`, at most
  int64_t slots, channels, columns;
  bool by_slot;  // a tile's rows are channels of one slot, not any rows of dw
  bool has_bias;
  int64_t partial_elements;
};

struct DweightSplit {
  int64_t row_tiles, column_tiles;
  int64_t slices;
  int64_t bias_parts;  // of a slice: row tiles that each sum a part of db
};

// The width of 128, 64 and 32 with the least work for `size` rows or columns. The weights are what narrower tiles
// lose by loading more for each product. Staging of x by elements ships without the middle width of rows.
inline int ChooseWidth(int64_t size, bool has_middle) {
  const auto cost = [size](int width, int weight) { return CeilDiv(size, width) * width * weight; };
  const int64_t wide = cost(128, 20), middle = has_middle ? cost(64, 23) : wide, narrow = cost(32, 30);
  return narrow < std::min(wide, middle) ? 32 : middle < wide ? 64 : 128;
}

inline TileShape ChooseTile(const DweightSizes& sizes, bool has_middle_rows) {
  return {ChooseWidth(sizes.by_slot ? sizes.channels : sizes.slots * sizes.channels, has_middle_rows),
          ChooseWidth(sizes.columns, true)};
}

// Takes `wanted` slices, or with -1 the number of them with the least estimated time, where partial sums have room for
// it.
inline DweightSplit SplitDweight(const DweightSizes& sizes, const TileShape& tile, int64_t multiprocessors,
                                 int64_t wanted) {
  const int64_t lists = sizes.by_slot ? sizes.slots : 1;  // of positions
  const int64_t list_rows = sizes.by_slot ? sizes.channels : sizes.slots * sizes.channels;
  DweightSplit split;
  split.row_tiles = lists * CeilDiv(list_rows, tile.rows);
  if (sizes.has_bias && (sizes.by_slot || split.row_tiles == 0)) ++split.row_tiles;
  split.column_tiles = CeilDiv(sizes.columns, tile.columns);
  split.bias_parts = !sizes.has_bias ? 0 : sizes.by_slot ? 1 : split.row_tiles;
  split.slices = 1;

  const int64_t tiles = sizes.groups * split.row_tiles * split.column_tiles;
  const double positions = double(sizes.positions) / double(std::max<int64_t>(lists, 1));
  const int64_t slice_elements = sizes.groups * sizes.columns * (sizes.slots * sizes.channels + split.bias_parts);
  if (tiles == 0 || slice_elements == 0) return split;
  if (wanted > 0) {
    split.slices = wanted;
    return split;
  }

  // Microseconds, of an H200. Only their ratios matter.
  const int resident = BlocksPerMultiprocessor(tile.rows, tile.columns);
  const double position = std::max(0.012, resident * tile.rows * tile.columns / 1.2e6);
  constexpr double kBlock = 4;          // start and end of a block
  constexpr double kElement = 8 / 3e6;  // a partial sum written and read again
  constexpr int64_t kLeastPositions = 128, kMostSlices = 1024;
  double least = 0;
  for (int64_t slices = 1; slices <= kMostSlices; ++slices) {
    if (slices > 1 && (slices * slice_elements > sizes.partial_elements || slices * kLeastPositions > positions)) break;
    // Lists differ in length: blocks of the longest may be the last ones.
    const int64_t waves = CeilDiv(tiles * slices, multiprocessors * resident) + (sizes.by_slot ? 1 : 0);
    const double sums = slices > 1 ? double(slices * slice_elements) * kElement : 0;
    const double time = double(waves) * (positions * position / double(slices) + kBlock) + sums;
    if (slices == 1 || time < least) {
      least = time;
      split.slices = slices;
    }
  }
  return split;
}

}  // namespace knnconv::gpu
