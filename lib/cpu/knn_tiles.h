// KNN forward and dinput as tiles. A row of a tile is one (node, batch entry); its taps come from a table.
#pragma once

#include <cstdint>

#include "cpu/operands.h"
#include "cpu/panels.h"

namespace knnconv::cpu {

// One pass over all groups: out[b, node, :] = bias + sum over taps (source, slot) of node:
//   source[b, source, :] @ packed[slot]
struct KnnPass {
  ffi::AnyBuffer source;  // [groups, batch, sources, D]
  ffi::AnyBuffer weight;
  const float* packed;
  const float* bias;  // null when absent
  Dims bias_dims;
  ffi::AnyBuffer out;  // [groups, batch, nodes, P]
  Source read;
  const Panels& panels;
  const Groups& groups;
  bool zero_empty_rows;  // nodes without a tap give zero instead of the bias
};

// The taps of forward: indices and slots are [groups, nodes, K]; slots is null where the slot is the column.
struct ForwardTaps {
  ffi::AnyBuffer indices;
  const ffi::AnyBuffer* slots;
  int64_t columns;  // K
};

// The taps of dinput in source order.
struct SourceTaps {
  ffi::AnyBuffer offsets;  // [groups, nodes + 1, 2]
  ffi::AnyBuffer rows;     // [groups, T]
  ffi::AnyBuffer slots;    // [groups, T]
  int64_t count;           // T
};

void RunKnnPass(ffi::ThreadPool& pool, const KnnPass& pass, const ForwardTaps& taps);
void RunKnnPass(ffi::ThreadPool& pool, const KnnPass& pass, const SourceTaps& taps);

}  // namespace knnconv::cpu
