// Tiles whose rows are different nodes: how those that read lists of taps hand layers to those that gather rows.
//
// A *layer* is one product of such a tile: rows that have a tap of the layer's slot give it, the others zeros. Layers
// are handed over a few at a time, in a ring of batches.
#pragma once

#include <cstdint>

#include "hopper/tap_pipe.h"
#include "hopper/tap_reader.h"

namespace knnconv::hopper {

using RowReader = TapReader<128, 2>;

inline constexpr int kLayers = 4;  // of a batch
static_assert(kLayers <= RowReader::kMostAhead);

inline constexpr int kRowBatches = 4;
using RowBatchPlace = RingPlace<kRowBatches>;

struct RowBatch {
  // The source row of each row of the tile, batch entries included, or -1: rows of one loading thread together.
  int32_t source[kLayers][16][kBoxRows / 16];
  int32_t slot[kLayers];
  uint32_t live[4];   // of each warp's rows, a bit for each layer in which one has a tap
  RowMarks marks[4];  // of each warp's rows; with the tile's last batch
  int32_t ends;       // whether it is the last
};

// In shared memory, of the block's two warpgroups of producers.
struct RowTable {
  RowBatch batch[kRowBatches];
  RowReader::Room reader;
  int32_t least_slot[2][4];  // of each listing warp's rows; calls take turns
  Barrier full[kRowBatches], empty[kRowBatches];

  // By one thread; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() {
    for (int i = 0; i < kRowBatches; ++i) {
      full[i].Init(4);  // warps
      empty[i].Init(4);
    }
    FenceBarrierInit();
  }
};

template <typename Shape>
KNNCONV_DEVICE RowTable& RowsOf(const Pipe<Shape>& pipe) {
  static_assert(sizeof(RowTable) <= Shape::kRowBytes);
  return *reinterpret_cast<RowTable*>(pipe.Rows());
}

}  // namespace knnconv::hopper
