// Staging of the operand tiles of one depth step in shared memory, as fragments read them:
//
//     A [rows, kDepth]                                         gathered from source by the tile's layers
//     B [kDepth, columns], or [columns, kDepth] transposed     from the layers' weight matrices
//
// The depth is (layer, channel) flattened, so that few channels waste no products. Chunks of 8 elements are the unit: 16
// bytes where the contiguous axis is a multiple of 8, else element by element. Both put the same numbers in the same
// places. What lies outside is zero: holes, channels past the last layer, columns past the last.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/tap_tile.h"

namespace knnconv::gpu {

inline constexpr int kDepth = 32;  // of a step
inline constexpr int kChunk = 8;   // elements
// A fragment's rows lie this far apart: with one chunk of padding, the 8 rows that are read together meet all banks.
inline constexpr int kDepthPitch = kDepth + kChunk;

template <typename T_, int kRows_, int kColumns_, bool kTransposed_>
struct TapShape {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kColumnPitch = kTransposed ? kDepthPitch : kColumns + kChunk;
  static constexpr int kElementsA = kRows * kDepthPitch;
  static constexpr int kElementsB = (kTransposed ? kColumns : kDepth) * kColumnPitch;
  static constexpr int kStage = kElementsA + kElementsB;

  // Chunk i of a thread: rows of A are kTapThreads / 4 apart; of B, as many as its lines are long.
  static constexpr int kLineA = kDepth / kChunk;
  static constexpr int kLineB = (kTransposed ? kDepth : kColumns) / kChunk;
  static constexpr int kLinesA = kTapThreads / kLineA, kLinesB = kTapThreads / kLineB;
  static constexpr int kChunksA = (kRows + kLinesA - 1) / kLinesA;
  static constexpr int kChunksB = ((kTransposed ? kColumns : kDepth) + kLinesB - 1) / kLinesB;
  static constexpr int kCountB = kTransposed ? kColumns : kDepth;
};

// A position in the flattened depth.
struct DepthPosition {
  int layer, channel;
  bool exists;
};

KNNCONV_DEVICE DepthPosition At(const TapGrid& grid, int depth, int active) {
  const Divisor::Result split = grid.depth.Divide(depth);
  return {split.quotient, split.remainder, split.quotient < active};
}

// Both operands 16 bytes at a time, asynchronously.
template <typename Shape>
class VectorStager {
 public:
  using T = typename Shape::T;

  KNNCONV_DEVICE VectorStager(const TapGemm& gemm, const TapGrid& grid, const TapTile& tile,
                              const TapTable<Shape::kRows>& table)
      : gemm_(gemm), grid_(grid), table_(table), column_(tile.first_column), weight_(reinterpret_cast<const T*>(tile.weight)) {
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const int row = RowA(i);
      rows_[i] = reinterpret_cast<const T*>(tile.source) + (row < Shape::kRows ? table.row_source[row] : 0);
      lookup_[i] = row < tile.rows ? table.row_column[row] : -1;
    }
  }

  // Copies step `step` of a round with `active` layers.
  KNNCONV_DEVICE void Stage(T* a, T* b, int step, int active) const {
    const int chunk = threadIdx.x % Shape::kLineA * kChunk;
    const DepthPosition at = At(grid_, step * kDepth + chunk, active);
    const int32_t* sources = table_.source[at.exists ? table_.layer[at.layer] : 0];
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const int row = RowA(i);
      if (Shape::kRows % Shape::kLinesA != 0 && row >= Shape::kRows) break;
      const int32_t source = at.exists && lookup_[i] >= 0 ? sources[lookup_[i]] : kHole;
      const bool valid = source >= 0;
      const T* from = rows_[i] + (valid ? int64_t{source} * gemm_.depth + at.channel : 0);
      CopyAsync16(a + row * kDepthPitch + chunk, from, valid);
    }
    if constexpr (Shape::kTransposed) {
      const T* matrix = weight_ + (at.exists ? table_.weight[at.layer] : 0);
#pragma unroll
      for (int i = 0; i < Shape::kChunksB; ++i) {
        const int line = LineB(i), column = column_ + line;
        if (Shape::kCountB % Shape::kLinesB != 0 && line >= Shape::kCountB) break;
        const bool valid = at.exists && column < gemm_.columns;
        const T* from = matrix + (valid ? int64_t{column} * gemm_.depth + at.channel : 0);
        CopyAsync16(b + line * Shape::kColumnPitch + chunk, from, valid);
      }
    } else {
      const int inner = threadIdx.x % Shape::kLineB * kChunk, column = column_ + inner;
#pragma unroll
      for (int i = 0; i < Shape::kChunksB; ++i) {
        const int line = LineB(i);
        if (Shape::kCountB % Shape::kLinesB != 0 && line >= Shape::kCountB) break;
        const DepthPosition k = At(grid_, step * kDepth + line, active);
        const bool valid = k.exists && column < gemm_.columns;
        const T* from =
            weight_ + (valid ? table_.weight[k.layer] + int64_t{k.channel} * gemm_.columns + column : 0);
        CopyAsync16(b + line * Shape::kColumnPitch + inner, from, valid);
      }
    }
  }

 private:
  KNNCONV_DEVICE static int RowA(int i) { return threadIdx.x / Shape::kLineA + i * Shape::kLinesA; }
  KNNCONV_DEVICE static int LineB(int i) { return threadIdx.x / Shape::kLineB + i * Shape::kLinesB; }

  const TapGemm& gemm_;
  const TapGrid& grid_;
  const TapTable<Shape::kRows>& table_;
  const int column_;
  const T* weight_;
  const T* rows_[Shape::kChunksA];
  int lookup_[Shape::kChunksA];
};

// Operands of any shape and of either type: chunks are read into registers, then written to shared memory.
template <typename Shape>
class AnyStager {
 public:
  using T = typename Shape::T;

  KNNCONV_DEVICE AnyStager(const TapGemm& gemm, const TapGrid& grid, const TapTile& tile,
                           const TapTable<Shape::kRows>& table, bool vector_a, bool vector_b)
      : gemm_(gemm), grid_(grid), tile_(tile), table_(table), vector_a_(vector_a), vector_b_(vector_b),
        weight_(reinterpret_cast<const T*>(tile.weight)) {}

  KNNCONV_DEVICE void Read(int step, int active) {
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const int row = threadIdx.x / Shape::kLineA + i * Shape::kLinesA;
      const bool exists = row < tile_.rows;
      ReadA(a_[i], exists ? row : 0, exists, step * kDepth + threadIdx.x % Shape::kLineA * kChunk, active);
    }
#pragma unroll
    for (int i = 0; i < Shape::kChunksB; ++i) {
      const int line = threadIdx.x / Shape::kLineB + i * Shape::kLinesB;
      const int inner = threadIdx.x % Shape::kLineB * kChunk;
      if constexpr (Shape::kTransposed) {
        ReadB(b_[i], tile_.first_column + line, step * kDepth + inner, active);
      } else {
        ReadB(b_[i], tile_.first_column + inner, step * kDepth + line, active);
      }
    }
  }

  KNNCONV_DEVICE void Write(T* a, T* b) const {
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const int row = threadIdx.x / Shape::kLineA + i * Shape::kLinesA;
      if (row < Shape::kRows) {
        *reinterpret_cast<uint4*>(a + row * kDepthPitch + threadIdx.x % Shape::kLineA * kChunk) = a_[i].bits;
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kChunksB; ++i) {
      const int line = threadIdx.x / Shape::kLineB + i * Shape::kLinesB;
      if (line < Shape::kCountB) {
        *reinterpret_cast<uint4*>(b + line * Shape::kColumnPitch + threadIdx.x % Shape::kLineB * kChunk) = b_[i].bits;
      }
    }
  }

 private:
  union Chunk {
    uint4 bits;
    T value[kChunk];
    KNNCONV_DEVICE Chunk() : bits(make_uint4(0, 0, 0, 0)) {}
  };

  KNNCONV_DEVICE void ReadA(Chunk& chunk, int row, bool exists, int depth, int active) const {
    chunk.bits = make_uint4(0, 0, 0, 0);
    if (!exists) return;
    const int64_t base = table_.row_source[row];
    const int column = table_.row_column[row];
    DepthPosition at = At(grid_, depth, active);
    if (vector_a_) {
      const int32_t source = at.exists ? table_.source[table_.layer[at.layer]][column] : kHole;
      if (source < 0) return;
      const int64_t offset = base + int64_t{source} * gemm_.depth + at.channel;
      if (gemm_.source_type == Element::kF32) {
        const float4* from = reinterpret_cast<const float4*>(reinterpret_cast<const float*>(tile_.source) + offset);
        const float4 low = from[0], high = from[1];
        const float value[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < kChunk; ++e) chunk.value[e] = FromFloat<T>(value[e]);
      } else {
        chunk.bits = *reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(tile_.source) + offset);
      }
      return;
    }
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      const int32_t source = at.exists ? table_.source[table_.layer[at.layer]][column] : kHole;
      if (source >= 0) {
        const int64_t offset = base + int64_t{source} * gemm_.depth + at.channel;
        chunk.value[e] = gemm_.source_type == Element::kF32
                             ? FromFloat<T>(reinterpret_cast<const float*>(tile_.source)[offset])
                             : reinterpret_cast<const T*>(tile_.source)[offset];
      }
      Advance(at, active);
    }
  }

  // 8 elements along the weight's contiguous axis from (depth, column) on.
  KNNCONV_DEVICE void ReadB(Chunk& chunk, int column, int depth, int active) const {
    chunk.bits = make_uint4(0, 0, 0, 0);
    DepthPosition at = At(grid_, depth, active);
    if (column >= gemm_.columns || !at.exists) return;
    if (vector_b_) {
      chunk.bits = *reinterpret_cast<const uint4*>(weight_ + OffsetB(at, column));
      return;
    }
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      if constexpr (Shape::kTransposed) {
        if (at.exists) chunk.value[e] = weight_[OffsetB(at, column)];
        Advance(at, active);
      } else {
        if (column + e < gemm_.columns) chunk.value[e] = weight_[OffsetB(at, column + e)];
      }
    }
  }

  KNNCONV_DEVICE int64_t OffsetB(const DepthPosition& at, int column) const {
    return table_.weight[at.layer] + (Shape::kTransposed ? int64_t{column} * gemm_.depth + at.channel
                                                         : int64_t{at.channel} * gemm_.columns + column);
  }

  KNNCONV_DEVICE void Advance(DepthPosition& at, int active) const {
    if (++at.channel == gemm_.depth) at = {at.layer + 1, 0, at.layer + 1 < active};
  }

  const TapGemm& gemm_;
  const TapGrid& grid_;
  const TapTile& tile_;
  const TapTable<Shape::kRows>& table_;
  const bool vector_a_, vector_b_;
  const T* weight_;
  Chunk a_[Shape::kChunksA], b_[Shape::kChunksB];
};

}  // namespace knnconv::gpu
