// When Hopper's kernels of weight gradients (compute capability 9.0) run, and the tiles that dw is cut into.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/dweight.h"
#include "hopper/dweight_tiles.h"

namespace knnconv::hopper {

// Groups of operands. Those of the result have lists of their own; or they are *members*, whose gradients are summed:
// their positions follow each other in one list.
struct DweightGroups {
  int32_t results = 1, members = 1;  // one of them is 1
  bool own_x = false, own_g = false, own_table = false;  // else all share

  int32_t count() const { return results * members; }
};

// What tiles and cuts follow from.
struct DweightSizes {
  int64_t lists = 0, boxes = 0, steps = 0;  // boxes of a list, steps of one of its tiles
  int64_t strips = 0, strip_steps = 0;      // of a list; none where strips cannot serve
  int64_t strip_taps = 0, strip_lines = 0;
  double box_cost = 1;  // of a box of x, where one of g takes 1 to fill
  int64_t columns = 0;
  bool gathers = false;     // rows of x, one by one
  bool sums_rows = false;   // db, from memory
  bool exceeds_l2 = false;  // what is gathered, and g
  int64_t partial_elements = 0;
  int64_t chain = 0;  // positions
  int multiprocessors = 0;
  DweightGroups groups;
};

struct DweightPlan {
  DweightSizes sizes;
  int tile = -1;  // of kDweightTiles; -1 where it cannot serve, or partial sums have no room
  int64_t boxes = 0, steps = 0;  // of a list; strips, where the tile has some
  int64_t blocks = 0, row_tiles = 0, column_tiles = 0;
  double cycles = 0;  // of a multiprocessor, estimated; only ratios matter
};

// The plan of one tile, or with -1 the one of least estimated time.
DweightPlan PlanDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device, int tile);
DweightPlan PlanDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, const gpu::Device& device, int tile);
DweightPlan PlanDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps, const gpu::Device& device, int tile);

// Whether Hopper's kernels are to compute `dweight`: where they can if `forced`, else where they are expected to be
// the faster ones, too; and how. They can where x and g are of one 16-bit type, channels and columns multiples of 8,
// with room for partial sums, a dense convolution within the copy engine's reach, and groups not with slots nor mixed.
bool ChooseDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan);
bool ChooseDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan);
bool ChooseDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan);

// Boxes of a slot's channels, and steps of a row of a table.
int32_t ChannelBoxes(const gpu::Dweight& dweight);
int64_t StepsOfRow(const gpu::Dweight& dweight);

// Rows of g in all, where a line has so many.
int64_t Positions(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, int32_t pitch);

// Where taps of slot 0 of a dimension start and how far they go beyond x's last pixel, as the copy engine counts.
struct Corners {
  int lower, upper;
};
Corners CornersOf(const gpu::DenseTaps& taps, int dimension);

}  // namespace knnconv::hopper
