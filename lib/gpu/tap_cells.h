// Staging of dinput's source rows cell by cell: all taps of one (node, slot) are added up in fp32 and multiplied once.
//
//     A_high [rows, kDepth] = round(sum),  A_low = round(sum - A_high):  (A_high + A_low) @ B is exact to 2^-17 in bf16
//
// A tile of different nodes needs two products a slot then, where slot by slot layers need one for each tap of the node
// that has the most. Bound by the latency of the gathers, which go through registers.
#pragma once

#include <cstdint>

#include "gpu/tap_layers.h"
#include "gpu/tap_staging.h"

namespace knnconv::gpu {

template <typename Shape>
class CellStager {
 public:
  using T = typename Shape::T;

  KNNCONV_DEVICE CellStager(const TapGemm& gemm, const TapGrid& grid, const TapTile& tile,
                            const TapTable<Shape::kRows>& table, bool, bool)
      : gemm_(gemm), grid_(grid), tile_(tile), table_(table), weights_(gemm, grid, tile, table, true, true) {}

  // Stages step `step` of a round with `active` layers: the high parts at `a`, the low ones behind them. Returns whether
  // one of the caller's low parts may differ from zero.
  KNNCONV_DEVICE bool Stage(T* a, T* b, int step, int active) const {
    weights_.StageB(b, step, active);
    const int chunk = threadIdx.x % Shape::kLineA * kChunk;
    const DepthPosition at = At(grid_, step * kDepth + chunk, active);
    const int32_t* cells = table_.source[table_.layer[at.layer]];
    const int32_t row_bytes = gemm_.depth * static_cast<int32_t>(sizeof(T));

    const char* base[Shape::kChunksA];
    const int32_t* taps[Shape::kChunksA];
    int count[Shape::kChunksA], most = 0;
    float sum[Shape::kChunksA][kChunk];
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const auto row = table_.row[Line(i)];
      const int32_t cell = at.exists ? cells[row.node] : kHole;
      const bool exists = cell != kHole;
      count[i] = exists ? CellCount(cell) : 0;
      taps[i] = tile_.tap_sources + (exists ? SourceOffset(tile_.tap_offsets, tile_.first_node + row.node) + CellFirst(cell) : 0);
      base[i] = row.source + at.channel * static_cast<int>(sizeof(T));
      most = max(most, count[i]);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) sum[i][e] = 0.0f;
    }
    for (int tap = 0; tap < most; ++tap) {
      Chunk value[Shape::kChunksA];
#pragma unroll
      for (int i = 0; i < Shape::kChunksA; ++i) {
        if (tap < count[i]) value[i].bits = *reinterpret_cast<const uint4*>(base[i] + int64_t{taps[i][tap]} * row_bytes);
      }
#pragma unroll
      for (int i = 0; i < Shape::kChunksA; ++i) {
#pragma unroll
        for (int e = 0; e < kChunk; ++e) sum[i][e] += ToFloat(value[i].element[e]);
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      Chunk high, low;
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        high.element[e] = FromFloat<T>(sum[i][e]);
        const float rest = sum[i][e] - ToFloat(high.element[e]);
        low.element[e] = FromFloat<T>(isfinite(rest) ? rest : 0.0f);
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
