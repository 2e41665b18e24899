// Forward and dinput, dense and KNN, as one matrix product whose depth runs over taps:
//
//     out[b, m, :] = bias + sum over taps (s, slot) of node m:  source[b, s, :] @ weight[slot]
//
// In forward the source is x and a node is an output row; in dinput the source is g, a node is a row of dx, and the
// weight's matrices are read transposed. What differs between operations is only where a node's taps come from.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/groups.h"
#include "gpu/kernel_choice.h"
#include "gpu/launch.h"

namespace knnconv::gpu {

// Where a node's taps come from.
enum class Taps : int {
  kColumns,  // a table's columns: tap k has slot k
  kRows,     // a table's rows with a slot for each tap, ascending in a row
  kSources,  // the source order: taps of a node from an offset to the next, slots ascending
  kWindow,   // arithmetic on pixels
};

struct TableTaps {
  const int32_t* sources;  // indices [M, K], or source_rows [T]
  const int32_t* slots;    // [M, K] or [T]; null with kColumns
  const int32_t* offsets;  // [N + 1, 2], kSources only
  GroupStrides source_groups, slot_groups, offset_groups;
  int32_t columns;  // K
  int64_t taps;     // T, kSources only
};

// Pixels of the result fall into classes with a common list of taps, one for each residue of the spacing (dinput with a
// stride; forward has one class). Dimension d of tap f moves by (residue + origin - f * dilation) / divide in dinput
// and by f * dilation - origin in forward.
struct WindowTaps {
  int32_t kernel[2], stride[2], padding[2], dilation[2];
  int32_t source_size[2], out_size[2];
  bool transposed;  // dinput
};

struct TapGemm {
  const void* source;
  const void* weight;  // [slots, depth, columns], or [slots, columns, depth] where transposed
  const float* bias;   // or null
  void* out;
  Element source_type, compute_type, out_type;
  bool transposed;
  bool zero_empty_rows;
  Taps kind;

  int64_t batch, nodes;
  int64_t source_rows;  // of one batch entry
  int32_t depth, columns, slots;
  GroupShape groups;
  GroupStrides source_groups, weight_groups, bias_groups;

  TableTaps table;
  WindowTaps window;

  // Of kSources: room that is free before and after.
  void* workspace;
  int64_t workspace_bytes;
};

// Taps of one node beyond which kernels that leave hubs to hub_sums.h do not write its row.
inline constexpr int kHubTaps = 256;

// Whether the portable kernels add up the source rows of a (node, slot) cell before the product. In a tile of many
// nodes some node has several taps of nearly every slot, and slot by slot as many layers as the most there are: on
// 100,000 points with K = 27, 5 times the products (0.74 ms) where cells need twice as many.
inline bool HasCells(const TapGemm& gemm) {
  constexpr int kMostBatch = 8;
  return gemm.kind == Taps::kSources && gemm.compute_type == Element::kBF16 && gemm.batch <= kMostBatch;
}

// `leaves_hubs`, where given: whether rows of hubs are still to be written.
Status RunTapGemm(const LaunchSite& site, const TapGemm& gemm, const TileChoice& wanted, bool* leaves_hubs = nullptr);

}  // namespace knnconv::gpu
