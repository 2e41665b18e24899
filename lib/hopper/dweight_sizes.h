// What a weight gradient on Hopper is made of: groups, lists, boxes and steps (dweight_plan.h says what these are), and
// what they cost.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "hopper/dweight_tiles.h"

namespace knnconv::hopper {

inline constexpr int kLeastCorner = -128, kMostCorner = 127;  // of the copy engine's pixels

// Groups of operands. Those of the result have lists of their own; in each list, the positions of *members*, whose
// gradients are summed, follow each other.
struct DweightGroups {
  int32_t results = 1, members = 1;
  bool own_x = false, own_g = false;   // of the results; else they share. Of dense convolutions
  // Of tables: from one member to the next, entries of x and rows of the table; entries of a table's slot order.
  int32_t x_step = 0, table_step = 0;
  int64_t order_entries = 0;
};

// What tiles and cuts follow from.
struct DweightSizes {
  int64_t lists = 0, boxes = 0, steps = 0;  // boxes of a list, steps of one of its tiles
  int64_t strips = 0, strip_steps = 0;      // of a list; none where strips cannot serve
  int64_t strip_taps = 0, strip_lines = 0;
  double box_cost = 1, column_cost = 1;  // of boxes of x and g, where one that the copy engine brings takes 1 to fill
  double bytes = 0;  // of x and g
  int64_t columns = 0;
  bool gathers = false;     // rows of x, one by one
  bool has_slots = false;
  int64_t starts = 0;       // words that say where lists and their members start, where that has to be found
  bool sums_rows = false;   // db, from memory
  int64_t partial_elements = 0;
  int64_t chain = 0;  // positions
  int multiprocessors = 0;
  DweightGroups groups;
};

// Elements of the room for partial sums that come first, and hold where lists start.
inline int64_t StartElements(const DweightSizes& sizes) { return (sizes.starts + 3) / 4 * 4; }

// False where an operand belongs to some of the group dimensions in a way that these kernels have no form for.
bool FindGroups(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, DweightGroups* groups);
bool FindGroups(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, DweightGroups* groups);
bool FindGroups(const gpu::Dweight& dweight, const gpu::SlotTaps& taps, DweightGroups* groups);

bool HasGroups(const gpu::Dweight& dweight);

// Of a call that is in reach.
DweightSizes SizesOf(const gpu::Dweight& dweight, const gpu::DenseTaps& taps);
DweightSizes SizesOf(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps);
DweightSizes SizesOf(const gpu::Dweight& dweight, const gpu::SlotTaps& taps);

// Whether rows of x (and over tables with slots, of g) are gathered one by one, and whether that pays.
bool Gathers(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps);
bool Gathers(const gpu::Dweight& dweight, const gpu::SlotTaps& taps);
bool PaysToGather(const gpu::Dweight& dweight);

// The most positions that a list has, where it is gathered.
int64_t GatheredPositions(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps);
int64_t GatheredPositions(const gpu::Dweight& dweight, const gpu::SlotTaps& taps);

// Whether positions have 31 bits, those of a step behind the last included.
inline bool HasShortNumbers(int64_t positions) { return positions <= INT32_MAX - 2 * kStep; }

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
