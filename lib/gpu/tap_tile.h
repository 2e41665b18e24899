// A thread block's share of a TapGemm: which rows and nodes, and where their operands lie.
#pragma once

#include <cstdint>

#include "gpu/tap_gemm_launch.h"
#include "gpu/tap_table.h"

namespace knnconv::gpu {

// Which part of the result a thread block computes; the same in all threads.
struct TapTile {
  uint32_t group;
  int rows;           // of the tile that exist
  int64_t first_node;
  int nodes;          // of the table, or rows where the window gives taps
  int first_column;
  int residue[2];     // of the class of pixels
  int width;          // pixels of the class in a line

  const char* source;
  const char* weight;
  const float* bias;
  char* out;
  const int32_t* tap_sources;
  const int32_t* tap_slots;
  const int32_t* tap_offsets;
};

// Quotient and remainder of numbers that are small in all but the largest problems.
struct Split {
  int64_t quotient, remainder;
};

KNNCONV_DEVICE Split Divide(int64_t value, int64_t divisor) {
  if (((value | divisor) >> 32) == 0) {
    const uint32_t quotient = static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor);
    return {quotient, static_cast<uint32_t>(value) - quotient * static_cast<uint32_t>(divisor)};
  }
  return {value / divisor, value % divisor};
}

KNNCONV_DEVICE int64_t BatchBytes(const TapGemm& gemm) {
  return gemm.source_rows * gemm.depth * ElementBytes(gemm.source_type);
}

// Pixels of a class lie this far apart in out, and in the source where a tap moves by nothing.
KNNCONV_DEVICE int SpacingOf(const WindowTaps& window, int dimension) {
  return window.transposed ? window.stride[dimension] : 1;
}
KNNCONV_DEVICE int StepOf(const WindowTaps& window, int dimension) {
  return window.transposed ? 1 : window.stride[dimension];
}

// Rows of a class of pixels, from row_tile * kRows on.
template <int kRows>
KNNCONV_DEVICE void OpenPixels(const TapGemm& gemm, int64_t row_tile, uint32_t pixel_class, TapTile& tile,
                               TapTable<kRows>& table) {
  const WindowTaps& w = gemm.window;
  const int spacing_h = SpacingOf(w, 0), spacing_w = SpacingOf(w, 1);
  const int classes_w = min(spacing_w, w.out_size[1]);
  tile.residue[0] = pixel_class / classes_w;
  tile.residue[1] = pixel_class % classes_w;
  const int height = (w.out_size[0] - tile.residue[0] + spacing_h - 1) / spacing_h;
  tile.width = (w.out_size[1] - tile.residue[1] + spacing_w - 1) / spacing_w;
  const int64_t first = row_tile * kRows, all = gemm.batch * height * tile.width;
  tile.rows = static_cast<int>(max(int64_t{0}, min(int64_t{kRows}, all - first)));
  tile.nodes = tile.rows;
  tile.first_node = 0;
  const int r = threadIdx.x;
  if (r < tile.rows) {
    const Split image = Divide(first + r, int64_t{height} * tile.width), pixel = Divide(image.remainder, tile.width);
    table.row[r] = {tile.source + image.quotient * BatchBytes(gemm), r, static_cast<int32_t>(image.quotient)};
    table.pixel.i[r] = static_cast<int32_t>(pixel.quotient);
    table.pixel.j[r] = static_cast<int32_t>(pixel.remainder);
  }
}

// Rows (node, batch entry), batch entries fastest: neighbours share taps. Where nodes differ in their slots, a tile
// holds whole nodes, or a part of one.
template <int kRows>
KNNCONV_DEVICE void OpenNodes(const TapGemm& gemm, int64_t row_tile, TapTile& tile, TapTable<kRows>& table) {
  int64_t first = row_tile * kRows, end = gemm.batch * gemm.nodes;
  if (gemm.kind != Taps::kColumns) {
    if (gemm.batch >= kRows) {
      const Split part = Divide(row_tile, (gemm.batch + kRows - 1) / kRows);
      first = part.quotient * gemm.batch + part.remainder * kRows;
      end = (part.quotient + 1) * gemm.batch;
    } else {
      const int rows = kRows / static_cast<int>(gemm.batch) * static_cast<int>(gemm.batch);
      first = row_tile * rows;
      end = min(end, first + rows);
    }
  }
  tile.rows = static_cast<int>(min(int64_t{kRows}, end - first));
  tile.first_node = Divide(first, gemm.batch).quotient;
  tile.nodes = static_cast<int>(Divide(first + tile.rows - 1, gemm.batch).quotient - tile.first_node) + 1;
  const int r = threadIdx.x;
  if (r < tile.rows) {
    const Split node = Divide(first + r, gemm.batch);
    table.row[r] = {tile.source + node.remainder * BatchBytes(gemm),
                    static_cast<int32_t>(node.quotient - tile.first_node), static_cast<int32_t>(node.remainder)};
  }
}

// The row of out that a row of the tile, which exists, is.
template <int kRows>
KNNCONV_DEVICE int64_t OutRow(const TapGemm& gemm, const TapTile& tile, const TapTable<kRows>& table, int r) {
  const WindowTaps& w = gemm.window;
  int64_t node = tile.first_node + table.row[r].node;
  if (gemm.kind == Taps::kWindow) {
    const int h = tile.residue[0] + table.pixel.i[r] * SpacingOf(w, 0);
    node = int64_t{h} * w.out_size[1] + tile.residue[1] + table.pixel.j[r] * SpacingOf(w, 1);
  }
  return table.row[r].batch * gemm.nodes + node;
}

// Finds the tile of this block and fills the table's rows. Ends with all threads in step.
template <int kRows, int kColumns>
KNNCONV_DEVICE TapTile OpenTile(const TapGemm& gemm, const TapGrid& grid, TapTable<kRows>& table) {
  TapTile tile;
  uint32_t index = blockIdx.x;
  tile.first_column = static_cast<int>(index % grid.column_tiles) * kColumns;
  index /= grid.column_tiles;
  const uint32_t row_tile = index % grid.row_tiles;
  index /= grid.row_tiles;
  const uint32_t pixel_class = index % grid.classes;
  tile.group = index / grid.classes;

  const GroupShape& shape = gemm.groups;
  const int64_t source_offset = gemm.source_groups.Offset(shape, tile.group);
  tile.source = static_cast<const char*>(gemm.source) + source_offset * ElementBytes(gemm.source_type);
  tile.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, tile.group) * 2;
  tile.bias = gemm.bias == nullptr ? nullptr : gemm.bias + gemm.bias_groups.Offset(shape, tile.group);
  const int64_t out_offset = tile.group * gemm.batch * gemm.nodes * gemm.columns;
  tile.out = static_cast<char*>(gemm.out) + out_offset * ElementBytes(gemm.out_type);

  const int r = threadIdx.x;
  if (gemm.kind == Taps::kWindow) {
    OpenPixels(gemm, row_tile, pixel_class, tile, table);
  } else {
    tile.tap_sources = gemm.table.sources + gemm.table.source_groups.Offset(shape, tile.group);
    tile.tap_slots = gemm.table.slots + gemm.table.slot_groups.Offset(shape, tile.group);
    tile.tap_offsets = gemm.table.offsets + gemm.table.offset_groups.Offset(shape, tile.group);
    OpenNodes(gemm, row_tile, tile, table);
  }
  if (r >= tile.rows && r < kRows) table.row[r] = {tile.source, kRows, 0};
  if (r < static_cast<int>(sizeof(table.node_live) / sizeof(uint32_t))) table.node_live[r] = 0;
  if (r < kLayers) table.source[r][kRows] = kHole;
  __syncthreads();
  return tile;
}

}  // namespace knnconv::gpu
