// Staging of the operand tiles of one depth step in shared memory, as fragments read them:
//
//     A [rows, kDepth]                                         gathered from source by the tile's layers
//     B [kDepth, columns], or [columns, kDepth] transposed     from the layers' weight matrices
//
// The depth is (layer, channel) flattened, so that few channels waste no products. Chunks of 8 elements are the unit:
// 16 bytes where the contiguous axis is a multiple of 8, else element by element. Both put the same numbers in the same
// places. What lies outside is zero: holes, channels past the last layer, columns past the last.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/knockout.h"
#include "gpu/tap_tile.h"

namespace knnconv::gpu {

template <typename T_, int kRows_, int kColumns_, bool kTransposed_>
struct TapShape {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kColumnPitch = TapWeightPitch(kColumns, kTransposed);
  static constexpr int kElementsA = kRows * kDepthPitch;
  static constexpr int kElementsB = (kTransposed ? kColumns : kDepth) * kColumnPitch;
  static constexpr int kStage = kElementsA + kElementsB;

  // Chunk i of a thread: rows of A are kTapThreads / 4 apart; of B, as many as its lines are long.
  static constexpr int kLineA = kDepth / kChunk;
  static constexpr int kLineB = (kTransposed ? kDepth : kColumns) / kChunk;
  static constexpr int kLinesA = kTapThreads / kLineA, kLinesB = kTapThreads / kLineB;
  static_assert(kRows % kLinesA == 0);
  static constexpr int kChunksA = kRows / kLinesA;
  static constexpr int kChunksB = ((kTransposed ? kColumns : kDepth) + kLinesB - 1) / kLinesB;
  static constexpr int kCountB = kTransposed ? kColumns : kDepth;
};

// A position in the flattened depth. Past the last layer it does not exist; its layer is then any that may be looked
// up.
struct DepthPosition {
  int layer, channel;
  bool exists;
};

KNNCONV_DEVICE DepthPosition At(const TapGrid& grid, int depth, int active) {
  const Divisor::Result split = grid.depth.Divide(depth);
  const bool exists = split.quotient < active;
  return {exists ? split.quotient : 0, split.remainder, exists};
}

// Both operands 16 bytes at a time, asynchronously. These are the instructions of the main loop besides its products,
// so they are few: no branch, and no address is made safe where nothing is read from it.
template <typename Shape>
class VectorStager {
 public:
  using T = typename Shape::T;

  KNNCONV_DEVICE VectorStager(const TapGemm& gemm, const TapGrid& grid, const TapTile& tile,
                              const TapTable<Shape::kRows>& table, bool, bool)
      : gemm_(gemm), grid_(grid), table_(table), weight_(reinterpret_cast<const T*>(tile.weight)),
        columns_(gemm.columns - tile.first_column) {
    weight_ += Shape::kTransposed ? int64_t{tile.first_column} * gemm.depth : int64_t{tile.first_column};
  }

  // Copies step `step` of a round with `active` layers.
  KNNCONV_DEVICE void Stage(T* a, T* b, int step, int active) const {
    const int chunk = threadIdx.x % Shape::kLineA * kChunk;
    StageA(a + chunk, At(grid_, step * kDepth + chunk, active));
    StageB(b, step, active);
  }

  KNNCONV_DEVICE void StageB(T* b, int step, int active) const {
    const int chunk = threadIdx.x % Shape::kLineA * kChunk;
    const DepthPosition at = At(grid_, step * kDepth + chunk, active);
    if constexpr (Shape::kTransposed) {
      StageLines(b + chunk, weight_ + table_.weight[at.layer] + at.channel, gemm_.depth,
                 at.exists ? columns_ : 0);
    } else {
      const int inner = threadIdx.x % Shape::kLineB * kChunk;
      if (grid_.whole_steps) {
        const T* first = weight_ + table_.weight[at.layer] + int64_t{at.channel - chunk} * gemm_.columns;
        StageLines(b + inner, first + inner, gemm_.columns, at.exists && inner < columns_ ? kDepth : 0);
      } else {
        StageScatteredLines(b + inner, step, active, inner);
      }
    }
  }

 private:
  KNNCONV_DEVICE void StageA(T* a, const DepthPosition& at) const {
    if constexpr (!kHasGathers) return;
    const int32_t* sources = table_.source[table_.layer[at.layer]];
    const int32_t row_bytes = gemm_.depth * static_cast<int32_t>(sizeof(T));
    // All addresses first: the lookups of one row then wait for shared memory together with the others'.
    const char* from[Shape::kChunksA];
    bool valid[Shape::kChunksA];
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const auto row = table_.row[threadIdx.x / Shape::kLineA + i * Shape::kLinesA];
      const int32_t source = sources[row.node];
      from[i] = row.source + int64_t{source} * row_bytes + at.channel * static_cast<int>(sizeof(T));
      valid[i] = at.exists && source != kHole;
    }
#pragma unroll
    for (int i = 0; i < Shape::kChunksA; ++i) {
      const int line = threadIdx.x / Shape::kLineA + i * Shape::kLinesA;
      CopyAsync16(a + line * kDepthPitch, from[i], valid[i]);
    }
  }

  // Lines of B that lie `pitch` elements apart, the first `lines` of them.
  KNNCONV_DEVICE void StageLines(T* b, const T* from, int pitch, int lines) const {
    const int first = threadIdx.x / Shape::kLineB;
    from += int64_t{first} * pitch;
#pragma unroll
    for (int i = 0; i < Shape::kChunksB; ++i, from += int64_t{Shape::kLinesB} * pitch) {
      const int line = first + i * Shape::kLinesB;
      if (Shape::kCountB % Shape::kLinesB != 0 && line >= Shape::kCountB) break;
      CopyAsync16(b + line * Shape::kColumnPitch, from, line < lines);
    }
  }

  // Lines of B where a step straddles layers.
  KNNCONV_DEVICE void StageScatteredLines(T* b, int step, int active, int inner) const {
#pragma unroll
    for (int i = 0; i < Shape::kChunksB; ++i) {
      const int line = threadIdx.x / Shape::kLineB + i * Shape::kLinesB;
      if (Shape::kCountB % Shape::kLinesB != 0 && line >= Shape::kCountB) break;
      const DepthPosition k = At(grid_, step * kDepth + line, active);
      const T* from = weight_ + table_.weight[k.layer] + int64_t{k.channel} * gemm_.columns + inner;
      CopyAsync16(b + line * Shape::kColumnPitch, from, k.exists && inner < columns_);
    }
  }

  const TapGemm& gemm_;
  const TapGrid& grid_;
  const TapTable<Shape::kRows>& table_;
  const T* weight_;     // from the tile's first column on
  const int columns_;   // from there to the last
};

// Operands of any shape, and a float32 source, which is rounded as it is read; done when Stage returns.
template <typename Shape>
class AnyStager {
 public:
  using T = typename Shape::T;

  KNNCONV_DEVICE AnyStager(const TapGemm& gemm, const TapGrid& grid, const TapTile& tile,
                           const TapTable<Shape::kRows>& table, bool vector_a, bool vector_b)
      : gemm_(gemm), grid_(grid), tile_(tile), table_(table), vector_a_(vector_a), vector_b_(vector_b),
        weight_(reinterpret_cast<const T*>(tile.weight)) {}

  KNNCONV_DEVICE void Stage(T* a, T* b, int step, int active) const {
    // Two chunks at a time keep enough loads in flight; more would cost registers and code.
#pragma unroll 2
    for (int i = threadIdx.x; i < Shape::kRows * Shape::kLineA; i += kTapThreads) {
      const int line = i / Shape::kLineA, inner = i % Shape::kLineA * kChunk;
      *reinterpret_cast<uint4*>(a + line * kDepthPitch + inner) = ReadA(line, step * kDepth + inner, active);
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < Shape::kCountB * Shape::kLineB; i += kTapThreads) {
      const int line = i / Shape::kLineB, inner = i % Shape::kLineB * kChunk;
      const int column = tile_.first_column + (Shape::kTransposed ? line : inner);
      const int depth = step * kDepth + (Shape::kTransposed ? inner : line);
      *reinterpret_cast<uint4*>(b + line * Shape::kColumnPitch + inner) = ReadB(column, depth, active);
    }
  }

 private:
  union Chunk {
    uint4 bits;
    T value[kChunk];
    KNNCONV_DEVICE Chunk() : bits(make_uint4(0, 0, 0, 0)) {}
  };

  KNNCONV_DEVICE int32_t SourceOf(const DepthPosition& at, int node) const {
    return at.exists ? table_.source[table_.layer[at.layer]][node] : kHole;
  }

  KNNCONV_DEVICE void NextChannel(DepthPosition& at, int active) const {
    if (++at.channel < gemm_.depth) return;
    const bool exists = at.exists && at.layer + 1 < active;
    at = {exists ? at.layer + 1 : 0, 0, exists};
  }

  // 8 channels of a row, from `depth` on.
  KNNCONV_DEVICE uint4 ReadA(int line, int depth, int active) const {
    Chunk chunk;
    const auto row = table_.row[line];
    DepthPosition at = At(grid_, depth, active);
    int32_t source = SourceOf(at, row.node);
    if (vector_a_) {
      if (source < 0) return chunk.bits;
      const int64_t offset = int64_t{source} * gemm_.depth + at.channel;
      if (gemm_.source_type != Element::kF32) {
        return *reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(row.source) + offset);
      }
      const float4* from = reinterpret_cast<const float4*>(reinterpret_cast<const float*>(row.source) + offset);
      const float4 low = from[0], high = from[1];
      const float value[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int e = 0; e < kChunk; ++e) chunk.value[e] = FromFloat<T>(value[e]);
      return chunk.bits;
    }
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      if (source >= 0) {
        const int64_t offset = int64_t{source} * gemm_.depth + at.channel;
        chunk.value[e] = gemm_.source_type == Element::kF32
                             ? FromFloat<T>(reinterpret_cast<const float*>(row.source)[offset])
                             : reinterpret_cast<const T*>(row.source)[offset];
      }
      NextChannel(at, active);
      if (at.channel == 0) source = SourceOf(at, row.node);
    }
    return chunk.bits;
  }

  // 8 elements along the weight's contiguous axis from (depth, column) on.
  KNNCONV_DEVICE uint4 ReadB(int column, int depth, int active) const {
    Chunk chunk;
    DepthPosition at = At(grid_, depth, active);
    if (column >= gemm_.columns || !at.exists) return chunk.bits;
    if (vector_b_) return *reinterpret_cast<const uint4*>(weight_ + OffsetB(at, column));
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      if constexpr (Shape::kTransposed) {
        if (at.exists) chunk.value[e] = weight_[OffsetB(at, column)];
        NextChannel(at, active);
      } else {
        if (column + e < gemm_.columns) chunk.value[e] = weight_[OffsetB(at, column + e)];
      }
    }
    return chunk.bits;
  }

  KNNCONV_DEVICE int64_t OffsetB(const DepthPosition& at, int column) const {
    return table_.weight[at.layer] + (Shape::kTransposed ? int64_t{column} * gemm_.depth + at.channel
                                                         : int64_t{at.channel} * gemm_.columns + column);
  }

  const TapGemm& gemm_;
  const TapGrid& grid_;
  const TapTile& tile_;
  const TapTable<Shape::kRows>& table_;
  const bool vector_a_, vector_b_;
  const T* weight_;
};

}  // namespace knnconv::gpu
