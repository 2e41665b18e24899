// Weight and bias gradients as one matrix product whose depth runs over taps:
//
//     dw[v, c, o] = sum over taps (row, source) of slot v:  x[source, c] * g[row, o]
//     db[o] = sum over rows:  g[row, o]
//
// Rows of the product are rows of dw as a matrix [V * C, O]. What differs between operations is only where a slot's
// taps come from (dweight_taps.h). The depth is split over thread blocks; each sums its slice into fp32 partials,
// which a second kernel adds in slice order (dweight_reduce.h).
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/groups.h"
#include "gpu/kernel_choice.h"
#include "gpu/launch.h"

namespace knnconv::gpu {

// Which operand group a thread block reads: a group of the result, and one of the members that are summed into it.
struct GroupNumber {
  uint32_t group, member;
};

struct GroupShapes {
  GroupShape groups, members;  // of each dimension's sizes, one is 1
};

// The window of output pixel (i, j) and slot (fh, fw): x at (i * stride + fh * dilation - padding).
struct DenseTaps {
  int32_t in_size[2], out_size[2];
  int32_t kernel_width;
  int32_t stride[2], padding[2], dilation[2];
};

struct NeighborTable {
  const int32_t* indices;  // [outputs, neighbours]
  const int32_t* slots;    // the same, or null: the slot is the column
  int32_t sources, outputs, neighbours, slot_count;
  bool zero_empty_rows;
};

// A table without slots: slot v's tap of row m is indices[m, v].
struct ColumnTaps {
  NeighborTable table;
  GroupStrides index_groups;
};

// A table with slots, through its slot order.
struct SlotTaps {
  NeighborTable table;
  const int32_t* offsets;  // [slot_count + 1, 2]: 64-bit numbers, low word first
  const int32_t* rows;     // of the taps
  const int32_t* sources;  // of the taps
  GroupStrides index_groups, slot_groups, offset_groups, row_groups, source_groups;
};

// One weight gradient. Members are the group dimensions that the operands have and the result lacks: their taps stand
// one behind the other, so that their gradients are summed.
struct Dweight {
  const void* x;
  const void* g;
  void* dw;
  void* db;         // or null
  float* partials;  // `partial_elements` of fp32
  int64_t partial_elements;
  Element x_type, g_type, dw_type, db_type;  // x_type: g_type or fp32, which is rounded to g_type as it is read

  int64_t batch;
  int32_t slots, channels, columns;  // V, C, O; V * C has 31 bits
  GroupShapes shapes;
  GroupStrides x_groups, g_groups;
};

Status RunDweight(const LaunchSite& site, const Dweight& dweight, const DenseTaps& taps, const DweightChoice& choice);
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const DweightChoice& choice);
Status RunDweight(const LaunchSite& site, const Dweight& dweight, const SlotTaps& taps, const DweightChoice& choice);

}  // namespace knnconv::gpu
