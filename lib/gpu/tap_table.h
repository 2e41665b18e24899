// What a thread block of a TapGemm holds in shared memory: the table of its rows' taps, and the operands' tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/tap_gemm_launch.h"

namespace knnconv::gpu {

// A layer is one slot with at most one tap for each node of the tile: one depth range of the matrix product. The main
// loop takes layers in rounds of kLayers.
inline constexpr int kLayers = 32;
// Slots whose layers are laid out at a time, where slots come from a table.
inline constexpr int kSlotWindow = 64;
inline constexpr int32_t kHole = -1;

// In shared memory, and small: three blocks of 128 x 64 are to fit on a multiprocessor. kRows is the tile's height.
template <int kRows>
struct TapTable {
  // Source row of each layer and node. The last column is holes, for rows that do not exist; it also makes the pitch
  // odd, so that lanes which walk down a column meet different banks.
  int32_t source[kLayers][kRows + 1];
  // The layers of this round that have a tap, in order: row of `source`, and the offset of the slot's matrix in weight.
  int32_t layer[kLayers];
  int64_t weight[kLayers];
  uint32_t live;  // a bit for each layer of this round that has a tap

  // Rows of the tile. One that does not exist, or is not this kernel's to write, has node kRows.
  struct alignas(16) Row {
    const char* source;  // its batch entry
    int32_t node;        // column of `source`
    int32_t batch;
  } row[kRows];
  uint32_t node_live[(kRows + 31) / 32];  // a bit for each node that has a tap

  union {
    struct {  // kWindow: the row's place among the pixels of its class
      int32_t i[kRows], j[kRows];
    } pixel;
    struct {  // kRows, kSources: how far a node's list has been laid out
      int32_t cursor[kRows];
      int32_t slot[kRows], rank[kRows];  // of the last tap before the cursor; rank counts equal slots
      int32_t multiplicity[kSlotWindow], first_layer[kSlotWindow];
      int32_t layer_slot[kLayers];
    } list;
    struct {  // cells: where a node's list stands, and its place if the lists of the tile are strung together
      int64_t begin[kRows];
      int32_t place[kRows + 1];
    } strung;
  };
};

inline constexpr int kTapStages = 2;  // steps whose tiles are held at once
inline constexpr int kChunk = 8;      // elements of a 16-byte copy
// A fragment's rows lie this far apart: with one chunk of padding, the 8 rows that are read together meet all banks.
inline constexpr int kDepthPitch = kDepth + kChunk;

// Elements from a line of B to the next: a column's depth where weights are transposed, else all columns.
constexpr int TapWeightPitch(int columns, bool transposed) { return transposed ? kDepthPitch : columns + kChunk; }

// Shared memory of the kernel of a tile with 16, 64 or 128 rows. Cells have two parts of A.
constexpr int TapSharedBytes(int rows, int columns, bool transposed, Staging staging) {
  const int a = rows * kDepthPitch * (staging == Staging::kCells ? 2 : 1);
  const int b = (transposed ? columns : kDepth) * TapWeightPitch(columns, transposed);
  const size_t table = rows == 16 ? sizeof(TapTable<16>) : rows == 64 ? sizeof(TapTable<64>) : sizeof(TapTable<128>);
  return kTapStages * (a + b) * 2 + static_cast<int>(table);
}

}  // namespace knnconv::gpu
