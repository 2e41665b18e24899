// Which tile a weight gradient on Hopper is cut into, by shape.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/dweight_plan.h"
#include "hopper/dweight_launch.h"
#include "hopper/dweight_plan.h"

namespace knnconv::hopper {

// Positions whose products lie in one chain: those of the portable kernels where results are fp32. Each 16 of them may
// lose an eps32 of a sum of one sign, so that chains this much longer still lose a fraction of what rounding to 16 bits
// does.
inline int64_t ChainPositions(gpu::Element result) {
  const int times = result == gpu::Element::kF32 ? 1 : result == gpu::Element::kF16 ? 4 : 8;
  return int64_t{times} * gpu::kChainPositions;
}

// Boxes of pixels, and of those where steps skip some (DweightSizes::box_cost).
inline constexpr double kPixelCost = 1.12, kStridedCost = 1.6;

// What tiles and cuts follow from.
struct DweightSizes {
  int64_t lists = 0, boxes = 0, steps = 0;  // boxes of a list, steps of one of its tiles
  int64_t strips = 0, strip_steps = 0;      // of a list; none where strips cannot serve
  int64_t strip_taps = 0, strip_lines = 0;
  double box_cost = 1;  // of a box of x, where one of g takes 1 to fill
  int64_t columns = 0;
  bool sums_rows = false;  // db, from memory
  int64_t partial_elements = 0;
  int64_t chain = 0;  // positions
  int multiprocessors = 0;
};

struct DweightPlan {
  int tile = -1;  // of kDweightTiles; -1 where it cannot serve, or partial sums have no room
  int64_t boxes = 0, steps = 0;  // of a list; strips, where the tile has some
  int64_t blocks = 0, row_tiles = 0, column_tiles = 0;
  double cycles = 0;  // of a multiprocessor, estimated; only ratios matter
};

inline DweightPlan PlanTile(const DweightSizes& sizes, int tile) {
  const DweightTileSize& size = kDweightTiles[tile];
  DweightPlan plan;
  if (size.has_strips() && size.taps != sizes.strip_taps) return plan;
  plan.boxes = size.has_strips() ? sizes.strips : sizes.boxes;
  plan.steps = size.has_strips() ? sizes.strip_steps : sizes.steps;
  plan.row_tiles = CeilDiv(plan.boxes, size.row_boxes());
  plan.column_tiles = CeilDiv(sizes.columns, size.columns);
  const int64_t tiles = sizes.lists * plan.row_tiles * plan.column_tiles;
  // Each block and each tile may bring a part, and its sums for db.
  const int64_t part = size.elements() + (sizes.sums_rows ? 0 : kBiasSums);
  const int64_t of_block = part + (sizes.sums_rows ? CeilDiv(sizes.columns, kBiasSums) * kBiasSums : 0);
  const int64_t length = tiles * plan.steps;
  plan.blocks =
      std::min({int64_t{sizes.multiprocessors}, (sizes.partial_elements - tiles * part) / of_block, length});
  if (plan.blocks < 1) return plan;
  plan.tile = tile;

  // Fitted to the times of tests/gpu/hopper/check_dweight.cu on an H200, by which the tile of least estimated time takes
  // 0.4 % longer than the fastest on average.
  constexpr double kFill = 40;        // bytes a cycle from L2 to shared memory
  constexpr double kShared = 120;     // bytes a cycle that shared memory gives or takes
  constexpr double kStart = 20;       // of a step
  constexpr double kProduct = 1.25;   // of the tensor cores' peak
  constexpr double kReduction = 1.2;  // of a part written and read again
  const double row_boxes = double(plan.boxes) / double(plan.row_tiles);
  const double column_boxes = double(CeilDiv(sizes.columns, kBox)) / double(plan.column_tiles);
  const double row_box_bytes = double(size.has_strips() ? sizes.strip_lines * kLineBytes : kBoxBytes);
  const double row_bytes = row_boxes * row_box_bytes, column_bytes = column_boxes * kBoxBytes;
  const double fill = (row_bytes * sizes.box_cost + column_bytes) / kFill;
  const double products = size.row_boxes() * size.taps * size.columns * (kStep / 32.0) * kProduct;
  // Products of 64 rows read these and all of their columns.
  const double reads = size.row_boxes() * (kBoxBytes + size.width() * kStep * 2.0) / kShared;
  const double step = std::max({fill, products, reads + (row_bytes + column_bytes) / kShared}) + kStart;
  const double steps = double(CeilDiv(length, plan.blocks));
  const double tile_bytes = double(size.elements()) * 4;
  const double chains = std::max(1.0, std::min(steps, double(plan.steps)) * kStep / double(sizes.chain));
  const double stores = std::max(1.0, steps / double(plan.steps)) * (2 * chains - 1) * tile_bytes / kFill;
  const double sums = kReduction * double(plan.blocks + tiles) * tile_bytes / (kFill * sizes.multiprocessors);
  plan.cycles = steps * step + stores + sums;
  return plan;
}

// The tile with the least estimated time, or a forced one.
inline DweightPlan ChoosePlan(const DweightSizes& sizes, int forced) {
  if (forced >= 0) return PlanTile(sizes, forced);
  DweightPlan best;
  for (int tile = 0; tile < kDweightTileCount; ++tile) {
    const DweightPlan plan = PlanTile(sizes, tile);
    if (plan.tile >= 0 && (best.tile < 0 || plan.cycles < best.cycles)) best = plan;
  }
  return best;
}

}  // namespace knnconv::hopper
