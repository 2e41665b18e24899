// Which part of the result a tile is: its boxes of source rows, and where its rows stand in the result.
#pragma once

#include <cstdint>

#include "gpu/tap_layers.h"
#include "hopper/tap_plan.h"

namespace knnconv::hopper {

struct TapTile {
  int64_t row_tile;
  int pixel_class;
  int first_column;
};

// Tiles that share source rows follow each other.
template <typename Shape>
KNNCONV_DEVICE TapTile TileOf(const TapPlan& plan, int64_t index) {
  const gpu::Split columns = gpu::Divide(index, plan.column_tiles);
  const gpu::Split rows = gpu::Divide(columns.quotient, plan.row_tiles);
  return {rows.remainder, static_cast<int>(rows.quotient), static_cast<int>(columns.remainder) * Shape::kColumns};
}

// A table's box: batch entries from `first` on of one node, or of none where `node` lies beyond the last.
struct TableBox {
  int64_t node;
  int first;
};

template <typename Shape>
KNNCONV_DEVICE TableBox BoxOf(const TapPlan& plan, const TapTile& tile, int box) {
  const gpu::Split part = gpu::Divide(tile.row_tile * Shape::kBoxes + box, plan.parts);
  return {part.quotient, static_cast<int>(part.remainder) * kBoxRows};
}

// Pixels of a class, image by image and line by line.
struct PixelPlace {
  int64_t image;
  int i, j;
};

KNNCONV_DEVICE PixelPlace PlaceOf(const PixelClass& pixels, int64_t pixel) {
  const gpu::Split image = gpu::Divide(pixel, int64_t{pixels.size[0]} * pixels.size[1]);
  const gpu::Split line = gpu::Divide(image.remainder, pixels.size[1]);
  return {image.quotient, static_cast<int>(line.quotient), static_cast<int>(line.remainder)};
}

KNNCONV_DEVICE int64_t PixelsOf(const TapPlan& plan, const PixelClass& pixels) {
  return plan.gemm.batch * pixels.size[0] * pixels.size[1];
}

inline constexpr int64_t kNoRow = -1;

// The row of the result that row `row` of the tile is.
template <typename Shape>
KNNCONV_DEVICE int64_t OutRow(const TapPlan& plan, const TapTile& tile, int row) {
  const gpu::TapGemm& gemm = plan.gemm;
  if (gemm.kind == gpu::Taps::kWindow) {
    const PixelClass& pixels = plan.classes[tile.pixel_class];
    const int64_t pixel = tile.row_tile * Shape::kRows + row;
    if (pixel >= PixelsOf(plan, pixels)) return kNoRow;
    const PixelPlace place = PlaceOf(pixels, pixel);
    const int h = pixels.residue[0] + place.i * gpu::SpacingOf(gemm.window, 0);
    const int w = pixels.residue[1] + place.j * gpu::SpacingOf(gemm.window, 1);
    return place.image * gemm.nodes + int64_t{h} * gemm.window.out_size[1] + w;
  }
  if constexpr (Shape::kSource == Source::kRows) {
    const gpu::Split place = gpu::Divide(tile.row_tile * Shape::kRows + row, gemm.batch);
    return place.quotient < gemm.nodes ? place.remainder * gemm.nodes + place.quotient : kNoRow;
  }
  const TableBox box = BoxOf<Shape>(plan, tile, row / kBoxRows);
  const int64_t b = box.first + row % kBoxRows;
  return box.node < gemm.nodes && b < gemm.batch ? b * gemm.nodes + box.node : kNoRow;
}

}  // namespace knnconv::hopper
