// Rounds of layers: fills the table of a tile with up to kLayers layers at a time, by where its taps come from.
//
// Every function here is called by all threads of the block and ends with them in step.
#pragma once

#include <cstdint>

#include "gpu/fault.h"
#include "gpu/lanes.h"
#include "gpu/tap_lists.h"
#include "gpu/tap_tile.h"

namespace knnconv::gpu {

// How far the tile's layers have been handed out.
struct TapProgress {
  int next = 0;               // column or tap of the window; where slots come from a table, the first slot not laid out
  int layer = 0, layers = 0;  // of the slots that are laid out
};

inline constexpr int kNoLayers = -1;

template <int kRows>
KNNCONV_DEVICE bool IsLive(const TapTable<kRows>& table, int node) {
  return (table.node_live[node / 32] >> node % 32 & 1) != 0;
}

// Lanes that a list of `count` entries keeps busy: a power of two, kLayers at most.
KNNCONV_DEVICE int LanesFor(int count) {
  int width = kLayers;
  while (width / 2 >= count && width > 1) width /= 2;
  return width;
}

// Keeps the layers that have a tap, in order. `slot(l)` is the slot of layer l of the round.
template <int kRows, typename Slot>
KNNCONV_DEVICE int KeepLiveLayers(const TapGemm& gemm, TapTable<kRows>& table, const Slot& slot) {
  const int l = threadIdx.x;
  const uint32_t live = table.live;
  if (l < kLayers && (live >> l & 1) != 0) {
    const int position = __popc(live & ((1u << l) - 1));
    table.layer[position] = l;
    table.weight[position] = int64_t{gemm.depth} * gemm.columns * slot(l);
  }
  __syncthreads();
  return __popc(live);
}

// A table without slots: layer l is column next + l.
template <int kRows>
KNNCONV_DEVICE int NextColumns(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table,
                               TapProgress& progress) {
  const int columns = gemm.table.columns, first = progress.next;
  if (first >= columns) return kNoLayers;
  if (threadIdx.x == 0) table.live = 0;
  __syncthreads();
  // Neighbouring threads read one node's columns.
  const int width = LanesFor(columns - first), l = threadIdx.x % width, column = first + l;
  bool any = false;
  for (int j = threadIdx.x / width; AnyLane(j < tile.nodes); j += kTapThreads / width) {
    const bool in_table = j < tile.nodes && column < columns;
    const int32_t index = in_table ? tile.tap_sources[(tile.first_node + j) * columns + column] : kHole;
    const bool valid = IsRow(index, gemm.source_rows);
    if (in_table) table.source[l][j] = valid ? index : kHole;
    any |= valid;
    if (gemm.zero_empty_rows && GroupBallot(valid, width) != 0 && l == 0) MarkLive(table, j);
  }
  if (any) atomicOr(&table.live, 1u << l);
  __syncthreads();
  const int active = KeepLiveLayers(gemm, table, [&](int layer) { return first + layer; });
  progress.next = first + kLayers;
  return active;
}

// Taps of a class of pixels along one dimension: f = first + i * step for i < count.
struct WindowLine {
  int first, step, count;
};

KNNCONV_DEVICE WindowLine LineOf(const WindowTaps& window, int dimension, int residue) {
  if (!window.transposed) return {0, 1, window.kernel[dimension]};
  // f reaches a whole source pixel where residue + padding - f * dilation is a multiple of the stride; such f lie
  // equally far apart.
  const int kernel = window.kernel[dimension], origin = residue + window.padding[dimension];
  const auto next = [&](int f) {
    while (f < kernel && (origin - f * window.dilation[dimension]) % window.stride[dimension] != 0) ++f;
    return f;
  };
  const int first = next(0);
  if (first == kernel) return {0, 1, 0};
  const int step = next(first + 1) - first;
  return {first, step, (kernel - first + step - 1) / step};
}

KNNCONV_DEVICE int OffsetOf(const WindowTaps& window, int dimension, int residue, int f) {
  const int reach = f * window.dilation[dimension], padding = window.padding[dimension];
  return window.transposed ? (residue + padding - reach) / window.stride[dimension] : reach - padding;
}

// Pixels: layer l is tap next + l of the class, row by row of the kernel.
template <int kRows>
KNNCONV_DEVICE int NextWindow(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table,
                               TapProgress& progress) {
  const WindowTaps& window = gemm.window;
  const int residue_h = tile.residue[0];
  const int residue_w = kFault == Fault::kWrongResidue ? (tile.residue[1] + 1) % SpacingOf(window, 1) : tile.residue[1];
  const WindowLine vertical = LineOf(window, 0, residue_h), horizontal = LineOf(window, 1, residue_w);
  const int taps = vertical.count * horizontal.count, first = progress.next;
  if (first >= taps) return kNoLayers;
  if (threadIdx.x == 0) table.live = 0;
  __syncthreads();
  auto kernel_row = [&](int tap) { return vertical.first + tap / horizontal.count * vertical.step; };
  auto kernel_column = [&](int tap) { return horizontal.first + tap % horizontal.count * horizontal.step; };
  const int width = LanesFor(taps - first), l = threadIdx.x % width, tap = first + l;
  const int dh = OffsetOf(window, 0, residue_h, kernel_row(tap)), step_h = StepOf(window, 0);
  const int dw = OffsetOf(window, 1, residue_w, kernel_column(tap)), step_w = StepOf(window, 1);
  bool any = false;
  for (int j = threadIdx.x / width; j < tile.nodes && tap < taps; j += kTapThreads / width) {
    const int h = table.pixel.i[j] * step_h + dh, w = table.pixel.j[j] * step_w + dw;
    const bool valid = static_cast<unsigned>(h) < static_cast<unsigned>(window.source_size[0]) &&
                       static_cast<unsigned>(w) < static_cast<unsigned>(window.source_size[1]);
    table.source[l][j] = valid ? h * window.source_size[1] + w : kHole;
    any |= valid;
  }
  if (any) atomicOr(&table.live, 1u << l);
  __syncthreads();
  const int active = KeepLiveLayers(gemm, table, [&](int layer) {
    return kernel_row(first + layer) * window.kernel[1] + kernel_column(first + layer);
  });
  progress.next = first + kLayers;
  return active;
}

template <int kRows>
KNNCONV_DEVICE void ClearLayers(const TapTile& tile, TapTable<kRows>& table) {
  for (int i = threadIdx.x; i < kLayers * kRows; i += kTapThreads) {
    if (i % kRows < tile.nodes) table.source[i / kRows][i % kRows] = kHole;
  }
}

// A table with a slot for each tap: layers are slots in order, each as often as some node of the tile has it.
template <int kRows>
KNNCONV_DEVICE int NextOfLists(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table,
                               TapProgress& progress) {
  const int t = threadIdx.x;
  while (progress.layer == progress.layers) {
    const int begin = progress.next;
    if (begin >= gemm.slots) return kNoLayers;
    const int end = min(gemm.slots, begin + kSlotWindow);
    if (t < kSlotWindow) table.list.multiplicity[t] = 0;
    __syncthreads();
    WalkLists<false>(gemm, tile, table, begin, end, [&](int, int slot, int32_t, int rank) {
      atomicMax(&table.list.multiplicity[slot - begin], rank + 1);
      return true;
    });
    __syncthreads();
    int sum = 0, all = 0;
    for (int i = 0; i < end - begin; ++i) {
      if (i == t) sum = all;
      all += table.list.multiplicity[i];
    }
    if (t < end - begin) table.list.first_layer[t] = sum;
    progress.next = end;
    progress.layer = 0;
    progress.layers = all;
    __syncthreads();
  }

  const int slot_begin = (progress.next - 1) / kSlotWindow * kSlotWindow, slots = progress.next - slot_begin;
  const int round = progress.layer, layers = min(kLayers, progress.layers - round);
  ClearLayers(tile, table);
  if (t < slots) {
    const int first = table.list.first_layer[t] - round, end = first + table.list.multiplicity[t];
    for (int l = max(first, 0); l < min(end, kLayers); ++l) table.list.layer_slot[l] = slot_begin + t;
  }
  // Every layer of a slot is some node's tap, or that of a hole between taps, which adds zeros.
  if (t == 0) table.live = layers == kLayers ? ~0u : (1u << layers) - 1;
  __syncthreads();
  WalkLists<true>(gemm, tile, table, slot_begin, progress.next, [&](int j, int slot, int32_t source, int rank) {
    const int layer = table.list.first_layer[slot - slot_begin] + rank - round;
    if (layer >= kLayers) return false;
    table.source[layer][j] = source;
    return true;
  });
  __syncthreads();
  progress.layer = round + layers;
  return KeepLiveLayers(gemm, table, [&](int layer) { return table.list.layer_slot[layer]; });
}

// Fills the table with the tile's next layers and tells how many, which may be none; kNoLayers after the last ones.
template <int kRows>
KNNCONV_DEVICE int NextLayers(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table,
                              TapProgress& progress) {
  switch (gemm.kind) {
    case Taps::kColumns:
      return NextColumns(gemm, tile, table, progress);
    case Taps::kWindow:
      return NextWindow(gemm, tile, table, progress);
    default:
      return NextOfLists(gemm, tile, table, progress);
  }
}

}  // namespace knnconv::gpu
