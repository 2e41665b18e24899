// Staging of dinput's source rows cell by cell: all taps of one (node, slot) are added up in fp32 and multiplied once.
//
//     A_high [rows, kDepth] = round(sum),  A_low = round(sum - A_high):  (A_high + A_low) @ B is exact to 2^-17 in bf16
//
// A tile of different nodes needs two products a slot then, where slot by slot layers need one for each tap of the node
// that has the most. Bound by the latency of the gathers, which go through registers.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/tap_layers.h"
#include "gpu/tap_staging.h"

namespace knnconv::gpu {

// An entry of the table is not a source row here but the taps of the node's cell: `count` of them, from `first` on in
// the node's list. 0 is an empty cell.
struct Cell {
  int first, count;
};

KNNCONV_DEVICE Cell Unpack(int32_t entry) { return {entry & 0xffff, entry >> 16}; }
static_assert(kHubTaps < 1 << 15, "a cell's place and count take 16 bits each");

// Finds the lists of the tile's nodes; hubs' rows are left to others.
template <int kRows>
KNNCONV_DEVICE void OpenCells(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table) {
  const int t = threadIdx.x;
  if (t < kLayers) table.source[t][kRows] = 0;
  if (t < tile.nodes) {
    const TapList list = ListOf(gemm, tile, t);
    table.strung.begin[t] = list.begin;
    table.strung.place[t + 1] = list.count;
  }
  if (t < tile.rows && ListOf(gemm, tile, table.row[t].node).hub) table.row[t].node = kRows;
  __syncthreads();
  int place = 0;
  for (int j = 1; j <= t && j <= tile.nodes; ++j) place += table.strung.place[j];
  __syncthreads();
  if (t <= tile.nodes) table.strung.place[t] = place;
  __syncthreads();
}

// One layer for each of the next kLayers slots. Every thread takes taps from the strung lists: neighbours read
// neighbours.
template <int kRows>
KNNCONV_DEVICE int NextCells(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table, TapProgress& progress) {
  const int begin = progress.next, end = min(gemm.slots, begin + kLayers);
  if (begin >= gemm.slots) return kNoLayers;
  for (int i = threadIdx.x; i < kLayers * kRows; i += kTapThreads) table.source[i / kRows][i % kRows] = 0;
  if (threadIdx.x == 0) table.live = 0;
  __syncthreads();
  const int taps = table.strung.place[tile.nodes];
  uint32_t seen = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < taps; i += kTapThreads) {
    int j = 0;  // the last node whose place is at most i
    for (int step = kRows / 2; step > 0; step /= 2) {
      if (j + step < tile.nodes && table.strung.place[j + step] <= i) j += step;
    }
    const int at = i - table.strung.place[j];
    const int32_t* slots = tile.tap_slots + table.strung.begin[j];
    const int slot = slots[at];
    if (slot < begin || slot >= end) continue;
    const bool head = at == 0 || slots[at - 1] != slot;
    atomicAdd(&table.source[slot - begin][j], (1 << 16) + (head ? at : 0));
    seen |= 1u << (slot - begin);
  }
  if (seen != 0) atomicOr(&table.live, seen);
  __syncthreads();
  progress.next = end;
  return KeepLiveLayers(gemm, table, [&](int layer) { return begin + layer; });
}

template <typename Shape>
class CellStager {
 public:
  using T = typename Shape::T;

  KNNCONV_DEVICE CellStager(const TapGemm& gemm, const TapGrid& grid, const TapTile& tile,
                            const TapTable<Shape::kRows>& table, bool, bool)
      : gemm_(gemm), grid_(grid), tile_(tile), table_(table), weights_(gemm, grid, tile, table, true, true) {}

  // Stages step `step` of a round with `active` layers: the high parts at `a`, the low ones behind them. Returns
  // whether one of the caller's low parts may differ from zero.
  KNNCONV_DEVICE bool Stage(T* a, T* b, int step, int active) const {
    weights_.StageB(b, step, active);
    const int chunk = threadIdx.x % Shape::kLineA * kChunk;
    const DepthPosition at = At(grid_, step * kDepth + chunk, active);
    const int32_t* cells = table_.source[table_.layer[at.layer]];
    const int32_t row_bytes = gemm_.depth * static_cast<int32_t>(sizeof(T));

    const char* base[Shape::kChunksA];
    const int32_t* taps[Shape::kChunksA];
    int count[Shape::kChunksA], most = 0;
    Chunk first[Shape::kChunksA];
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const auto row = table_.row[Line(i)];
      const Cell cell = Unpack(cells[row.node]);
      count[i] = at.exists ? cell.count : 0;
      taps[i] = tile_.tap_sources + table_.strung.begin[row.node % Shape::kRows] + cell.first;
      base[i] = row.source + at.channel * static_cast<int>(sizeof(T));
      most = max(most, count[i]);
      if (count[i] > 0) first[i].bits = *reinterpret_cast<const uint4*>(base[i] + int64_t{taps[i][0]} * row_bytes);
    }
    // The rows' loads of one tap go out together; a row adds only what it has.
    float sum[Shape::kChunksA][kChunk];
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
#pragma unroll
      for (int e = 0; e < kChunk; ++e) sum[i][e] = ToFloat(first[i].element[e]);
    }
#pragma unroll 1
    for (int tap = 1; tap < most; ++tap) {
      Chunk value[Shape::kChunksA];
#pragma unroll
      for (int i = 0; i < Shape::kChunksA; ++i) {
        if (tap >= count[i]) continue;
        value[i].bits = *reinterpret_cast<const uint4*>(base[i] + int64_t{taps[i][tap]} * row_bytes);
      }
#pragma unroll
      for (int i = 0; i < Shape::kChunksA; ++i) {
        if (tap >= count[i]) continue;
#pragma unroll
        for (int e = 0; e < kChunk; ++e) sum[i][e] += ToFloat(value[i].element[e]);
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      Chunk high, low;
      high.bits = first[i].bits;
      if (count[i] > 1) {
#pragma unroll
        for (int e = 0; e < kChunk; ++e) {
          high.element[e] = FromFloat<T>(sum[i][e]);
          const float rest = sum[i][e] - ToFloat(high.element[e]);
          low.element[e] = FromFloat<T>(fabsf(rest) < INFINITY ? rest : 0.0f);  // infinities have no low part
        }
      }
      T* line = a + Line(i) * kDepthPitch + chunk;
      *reinterpret_cast<uint4*>(line) = high.bits;
      *reinterpret_cast<uint4*>(line + Shape::kElementsA) = low.bits;
    }
    return most > 1;
  }

 private:
  union Chunk {
    uint4 bits;
    T element[kChunk];
    KNNCONV_DEVICE Chunk() : bits(make_uint4(0, 0, 0, 0)) {}
  };

  KNNCONV_DEVICE static int Line(int i) { return threadIdx.x / Shape::kLineA + i * Shape::kLinesA; }

  const TapGemm& gemm_;
  const TapGrid& grid_;
  const TapTile& tile_;
  const TapTable<Shape::kRows>& table_;
  const VectorStager<Shape> weights_;
};

}  // namespace knnconv::gpu
