// A thread block's share of a TapGemm: which rows and nodes, and the table of their taps that the main loop reads.
#pragma once

#include <cstdint>

#include "gpu/tap_gemm_launch.h"

namespace knnconv::gpu {

// A layer is one slot with at most one tap for each node of the tile: one depth range of the matrix product. The main loop
// takes layers in rounds of kLayers.
inline constexpr int kLayers = 32;
// Slots whose layers are laid out at a time, where slots come from a table.
inline constexpr int kSlotWindow = 128;
inline constexpr int32_t kHole = -1;

// In shared memory; kRows is the tile's height.
template <int kRows>
struct TapTable {
  // Source row of each layer and node; odd pitch, so that lanes which walk down a column meet different banks.
  int32_t source[kLayers][kRows + 1];
  // The layers of this round that have a tap, in order: row of `source`, and the offset of the slot's matrix in weight.
  int32_t layer[kLayers];
  int64_t weight[kLayers];
  uint32_t live;  // a bit for each layer of this round that has a tap
  int32_t active;

  // Rows of the tile.
  int64_t row_source[kRows];   // offset of the row's batch entry in source
  int64_t row_out[kRows];      // offset of the row in out, or -1
  int32_t row_column[kRows];   // column of `source`
  int32_t node_live[kRows];    // whether a node has a tap

  union {
    struct {  // kWindow: the source pixel that an offset of 0 would read
      int32_t row[kRows], column[kRows];
    } pixel;
    struct {  // kRows, kSources: a node's list, and how far it has been laid out
      int64_t begin[kRows];
      int32_t count[kRows], cursor[kRows];
      int32_t slot[kRows], rank[kRows];  // of the last tap before the cursor; rank counts equal slots
      int32_t multiplicity[kSlotWindow], first_layer[kSlotWindow];
      int32_t layer_slot[kLayers];
    } list;
  };
};

// Which part of the result a thread block computes; the same in all threads.
struct TapTile {
  int64_t group;
  int rows;           // of the tile that exist
  int64_t first_node;
  int nodes;          // of the table, or rows where the window gives taps
  int first_column;
  int residue[2];     // of the class of pixels

  const char* source;
  const char* weight;
  const float* bias;
  const int32_t* tap_sources;
  const int32_t* tap_slots;
};

// Finds the tile of this block and fills the table's rows. Ends with all threads in step.
template <int kRows, int kColumns>
KNNCONV_DEVICE TapTile OpenTile(const TapGemm& gemm, const TapGrid& grid, TapTable<kRows>& table) {
  TapTile tile;
  int64_t index = blockIdx.x;
  tile.first_column = static_cast<int>(index % grid.column_tiles) * kColumns;
  index /= grid.column_tiles;
  const int64_t row_tile = index % grid.row_tiles;
  index /= grid.row_tiles;
  const int pixel_class = static_cast<int>(index % grid.classes);
  tile.group = index / grid.classes;

  const GroupShape& shape = gemm.groups;
  const int64_t source_offset = gemm.source_groups.Offset(shape, tile.group);
  tile.source = static_cast<const char*>(gemm.source) + source_offset * ElementBytes(gemm.source_type);
  tile.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, tile.group) * 2;
  tile.bias = gemm.bias == nullptr ? nullptr : gemm.bias + gemm.bias_groups.Offset(shape, tile.group);

  const int r = threadIdx.x;
  const int64_t out_group = tile.group * gemm.batch * gemm.nodes * gemm.columns;
  const int64_t batch_elements = gemm.source_rows * gemm.depth;
  if (gemm.kind == Taps::kWindow) {
    const WindowTaps& w = gemm.window;
    const int spacing_h = w.transposed ? w.stride[0] : 1, spacing_w = w.transposed ? w.stride[1] : 1;
    const int step_h = w.transposed ? 1 : w.stride[0], step_w = w.transposed ? 1 : w.stride[1];
    const int classes_w = min(spacing_w, w.out_size[1]);
    tile.residue[0] = pixel_class / classes_w;
    tile.residue[1] = pixel_class % classes_w;
    const int64_t height = (w.out_size[0] - tile.residue[0] + spacing_h - 1) / spacing_h;
    const int64_t width = (w.out_size[1] - tile.residue[1] + spacing_w - 1) / spacing_w;
    const int64_t first = row_tile * kRows, all = gemm.batch * height * width;
    tile.rows = static_cast<int>(max(int64_t{0}, min(int64_t{kRows}, all - first)));
    tile.nodes = tile.rows;
    tile.first_node = 0;
    if (r < kRows) {
      const bool exists = r < tile.rows;
      const int64_t pixel = first + (exists ? r : 0), b = pixel / (height * width), rest = pixel % (height * width);
      const int i = static_cast<int>(rest / width), j = static_cast<int>(rest % width);
      const int64_t h = tile.residue[0] + int64_t{i} * spacing_h, v = tile.residue[1] + int64_t{j} * spacing_w;
      table.row_source[r] = b * batch_elements;
      table.row_out[r] =
          exists ? out_group + (b * gemm.nodes + h * w.out_size[1] + v) * int64_t{gemm.columns} : int64_t{-1};
      table.row_column[r] = r;
      table.node_live[r] = 0;
      table.pixel.row[r] = i * step_h;
      table.pixel.column[r] = j * step_w;
    }
  } else {
    // Rows are (node, batch entry), batch entries fastest: neighbours share taps. Where nodes differ in their slots, a
    // tile holds whole nodes, or a part of one.
    int64_t first = row_tile * kRows, end = gemm.batch * gemm.nodes;
    if (gemm.kind != Taps::kColumns) {
      if (gemm.batch >= kRows) {
        const int64_t parts = (gemm.batch + kRows - 1) / kRows, node = row_tile / parts;
        first = node * gemm.batch + row_tile % parts * kRows;
        end = (node + 1) * gemm.batch;
      } else {
        const int64_t rows = kRows / gemm.batch * gemm.batch;
        first = row_tile * rows;
        end = min(end, first + rows);
      }
    }
    tile.rows = static_cast<int>(min(int64_t{kRows}, end - first));
    tile.first_node = first / gemm.batch;
    tile.nodes = static_cast<int>((first + tile.rows - 1) / gemm.batch - tile.first_node) + 1;
    tile.tap_sources = gemm.table.sources + gemm.table.source_groups.Offset(shape, tile.group);
    tile.tap_slots = gemm.table.slots + gemm.table.slot_groups.Offset(shape, tile.group);
    if (r < kRows) {
      const bool exists = r < tile.rows;
      const int64_t row = first + (exists ? r : 0), node = row / gemm.batch, b = row % gemm.batch;
      table.row_source[r] = b * batch_elements;
      table.row_out[r] = exists ? out_group + (b * gemm.nodes + node) * gemm.columns : int64_t{-1};
      table.row_column[r] = static_cast<int>(node - tile.first_node);
      table.node_live[r] = 0;
    }
  }
  __syncthreads();
  return tile;
}

}  // namespace knnconv::gpu
