// Which part of the result a tile is: its boxes of source rows, and where its rows stand in the result.
#pragma once

#include <cstdint>

#include "gpu/tap_layers.h"
#include "hopper/cluster.h"
#include "hopper/node_lists.h"
#include "hopper/tap_parts.h"
#include "hopper/tap_plan.h"

namespace knnconv::hopper {

// A table's box: batch entries from `first` on of one node, or of none where `node` lies beyond the last.
struct TableBox {
  int64_t node;
  int first;
};

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

inline constexpr int64_t kNoRow = -1;

// A node's entries of a source order: none of a hub, which somebody else sums.
struct NodeList {
  int64_t begin;
  int count;
  bool hub;
};

// The tiles of one team, or of a cluster whose blocks share them. Each of these takes one, then each one more, in rows
// of as many as there are multiprocessors, there and back: where tiles are sorted by their lists, those with one of the
// longest get one of the shortest next, and so do the teams that share a multiprocessor. Or a block's parts of the two
// tiles of a cluster (tap_parts.h).
template <typename Shape>
class TileWalk {
 public:
  // `order` is where the node stands that comes at each place, if the plan sorts nodes.
  KNNCONV_DEVICE TileWalk(const TapPlan& plan, const uint16_t* order, int team)
      : plan_(plan), order_(order) {
    const gpu::Divisor::Result at = plan.by_row_of_blocks.Divide(static_cast<int>(blockIdx.x / Shape::kSplit));
    place_ = at.remainder;
    row_ = at.quotient * Shape::kTeams + team;
    rows_ = plan.by_row_of_blocks.Divide(static_cast<int>(gridDim.x / Shape::kSplit)).quotient * Shape::kTeams;
    if constexpr (kHasParts) CutPair();
  }

  // Of the block, among those that share its tiles.
  KNNCONV_DEVICE static int rank() {
    if constexpr (Shape::kSplit > 1) return ClusterRank();
    return 0;
  }

  // Whether there is a tile number `turn`.
  KNNCONV_DEVICE bool Has(int64_t turn) const {
    if constexpr (kHasParts) return cut_.Has(rank(), PartOf(turn));
    return Index(turn) < plan_.tiles;
  }

  // Of its `all` steps, those of this block.
  KNNCONV_DEVICE StepRange Steps(int64_t turn, int all) const {
    if constexpr (kHasParts) return Part(turn).steps;
    return {all * rank() / Shape::kSplit, all * (rank() + 1) / Shape::kSplit};
  }

  // Whether blocks add their sums of the tile.
  KNNCONV_DEVICE bool Adds(int64_t turn) const {
    if constexpr (kHasParts) return Part(turn).adds;
    return Shape::kSplit > 1;
  }

  // Tiles that share source rows follow each other.
  KNNCONV_DEVICE TapTile Tile(int64_t turn) const {
    if constexpr (kHasParts) return TileAt(Part(turn).longer ? longer_ : shorter_);
    return TileAt(Index(turn));
  }

  // The list of a source order that tile number `turn`, at `box`, sums.
  KNNCONV_DEVICE NodeList List(int64_t turn, const TapTile& tile, const TableBox& box) const {
    if constexpr (kHasParts) return Part(turn).longer ? longer_list_ : shorter_list_;
    return ListAt(tile, box);
  }

  KNNCONV_DEVICE TapTile TileAt(int64_t index) const {
    const gpu::Divisor::Result columns = plan_.by_column_tiles.Divide(static_cast<int>(index));
    const gpu::Divisor::Result rows = plan_.by_row_tiles.Divide(columns.quotient);
    TapTile tile{rows.remainder, 0, rows.quotient, columns.remainder * Shape::kColumns};
    if (plan_.tile_groups > 1) {
      tile.group = tile.pixel_class / plan_.class_count;
      tile.pixel_class -= tile.group * plan_.class_count;
    }
    return tile;
  }

  // Classes differ in their pixels, so some have fewer tiles than others.
  KNNCONV_DEVICE bool IsEmpty(const TapTile& tile) const {
    return plan_.gemm.kind == gpu::Taps::kWindow &&
           tile.row_tile * Shape::kRows >= PixelsOf(plan_.classes[tile.pixel_class]);
  }

  KNNCONV_DEVICE TableBox Box(const TapTile& tile, int box) const {
    const gpu::Divisor::Result part = plan_.by_parts.Divide(static_cast<int>(tile.row_tile) * Shape::kBoxes + box);
    const int64_t node = plan_.sorts ? order_[part.quotient] : part.quotient;
    return {node, part.remainder * kBoxRows};
  }

  // The row of the result that row `row` of the tile is.
  KNNCONV_DEVICE int64_t OutRow(const TapTile& tile, int row) const {
    const gpu::TapGemm& gemm = plan_.gemm;
    if constexpr (Shape::kSource != Source::kBoxes) {
      const RowPlace place = PlaceOf(plan_, tile, tile.row_tile * Shape::kRows + row);
      return place.exists ? (place.group * gemm.batch + place.entry) * gemm.nodes + place.node : kNoRow;
    }
    const int64_t first_entry = tile.group * gemm.batch;
    if (gemm.kind == gpu::Taps::kWindow) {
      const PixelClass& pixels = plan_.classes[tile.pixel_class];
      const int64_t pixel = tile.row_tile * Shape::kRows + row;
      if (pixel >= PixelsOf(pixels)) return kNoRow;
      const PixelPlace place = PlaceOf(pixels, pixel);
      const int h = pixels.residue[0] + place.i * gpu::SpacingOf(gemm.window, 0);
      const int w = pixels.residue[1] + place.j * gpu::SpacingOf(gemm.window, 1);
      return (first_entry + place.image) * gemm.nodes + int64_t{h} * gemm.window.out_size[1] + w;
    }
    const TableBox box = Box(tile, row / kBoxRows);
    const int64_t b = box.first + row % kBoxRows;
    return box.node < gemm.nodes && b < gemm.batch ? (first_entry + b) * gemm.nodes + box.node : kNoRow;
  }

  // Where the box goes that starts with row `row` of the tile, beside its column; by plan.stores.
  KNNCONV_DEVICE int FlatRow(const TapTile& tile, int row) const {
    return static_cast<int>(tile.row_tile * Shape::kRows + row);
  }
  KNNCONV_DEVICE TableBox TableRows(const TapTile& tile, int row) const {
    const TableBox box = Box(tile, row / kBoxRows);
    return {box.node, box.first + row % kBoxRows};
  }

 private:
  static constexpr bool kHasParts = Shape::kTiles > 1;

  // A cluster's tiles: one from the front and one from the back, or one of the first alone.
  KNNCONV_DEVICE void CutPair() {
    const int tiles = static_cast<int>(plan_.tiles), alone = 2 * plan_.row_of_blocks - tiles;
    const int front = place_, back = tiles - 1 - (place_ - alone);
    has_two_ = place_ >= alone;
    // Both lists are read at once.
    const TapTile first = TileAt(front), last = TileAt(has_two_ ? back : front);
    const NodeList first_list = ListAt(first, Box(first, 0)), last_list = ListAt(last, Box(last, 0));
    const bool swapped = first_list.count < last_list.count;
    longer_ = swapped ? back : front;
    shorter_ = swapped ? front : back;
    longer_list_ = swapped ? last_list : first_list;
    shorter_list_ = swapped ? first_list : last_list;
    const int steps = (plan_.gemm.depth + kStepDepth - 1) / kStepDepth;
    cut_ = PairCut::Of(longer_list_.count * steps, has_two_ ? shorter_list_.count * steps : 0, has_two_);
  }

  KNNCONV_DEVICE NodeList ListAt(const TapTile& tile, const TableBox& box) const {
    const int32_t* const offsets = plan_.gemm.table.offsets + tile.group * plan_.groups.offsets;
    const int64_t begin = gpu::SourceOffset(offsets, box.node);
    const int64_t count = gpu::SourceOffset(offsets, box.node + 1) - begin;
    const bool hub = count > gpu::kHubTaps;
    return {begin, hub ? 0 : static_cast<int>(count), hub};
  }

  // Without a second tile, block 1 has no part of it.
  KNNCONV_DEVICE int PartOf(int64_t turn) const { return static_cast<int>(turn) + (has_two_ ? 0 : rank()); }
  KNNCONV_DEVICE TilePart Part(int64_t turn) const { return cut_.Part(rank(), PartOf(turn)); }

  // In 32 bits, since registers are scarce: tiles have 31, and nobody asks for more than a few turns behind the last.
  KNNCONV_DEVICE int64_t Index(int64_t turn) const {
    const uint32_t row = static_cast<uint32_t>(turn) * rows_ + row_, width = plan_.row_of_blocks;
    return row * width + (row % 2 == 0 ? place_ : width - 1 - place_);
  }
  KNNCONV_DEVICE int64_t PixelsOf(const PixelClass& pixels) const {
    return plan_.gemm.batch * pixels.size[0] * pixels.size[1];
  }

  const TapPlan& plan_;
  const uint16_t* order_;
  int place_, row_, rows_;
  PairCut cut_{};
  int longer_ = 0, shorter_ = 0;  // the two tiles
  NodeList longer_list_{}, shorter_list_{};
  bool has_two_ = false;
};

}  // namespace knnconv::hopper
