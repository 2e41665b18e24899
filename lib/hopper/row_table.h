// Tiles whose rows are different nodes: layers, as those who read lists of taps lay them out for those who gather rows.
//
// A *layer* is one product of such a tile: rows that have a tap of the layer's slot give it, the others zeros.
#pragma once

#include <cstdint>

#include "hopper/batch_ring.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_reader.h"

namespace knnconv::hopper {

using RowReader = TapReader<128, 2>;

inline constexpr int kLayers = 4;  // of a batch
static_assert(kLayers <= RowReader::kMostAhead);

struct alignas(16) RowBatch {
  // The source row of each row of the tile, batch entries included, or -1: rows of one loading thread together.
  int32_t source[kLayers][16][kBoxRows / 16];
  int32_t slot[kLayers];
  uint32_t live[4];   // of each warp's rows, a bit for each layer in which one has a tap
  RowMarks marks[4];  // of each warp's rows; with the tile's last batch
  int32_t ends;       // whether it is the last
};

using RowRing = BatchRing<RowBatch, 4>;

// Of the producers, in shared memory.
struct RowTable {
  RowRing ring;
  RowReader::Room reader;
  int32_t least_slot[2][4];  // of each listing warp's rows; calls take turns
};

template <typename Shape>
KNNCONV_DEVICE RowTable& RowsOf(const Pipe<Shape>& pipe) {
  static_assert(sizeof(RowTable) <= Shape::kRowBytes);
  return *reinterpret_cast<RowTable*>(pipe.Rows());
}

}  // namespace knnconv::hopper
