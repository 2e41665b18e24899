// What a thread block holds of its tile of dw: the shape, the products in registers, and the sums of g's columns for
// db.
#pragma once

#include <cstdint>

#include "gpu/dweight_plan.h"
#include "gpu/dweight_stage.h"
#include "gpu/elements.h"
#include "gpu/fragment.h"
#include "gpu/knockout.h"
#include "gpu/lanes.h"

namespace knnconv::gpu {

template <int kRows_, int kColumns_>
struct DweightTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  static constexpr int kWarpsAcross = kRows == 32 && kColumns == 128 ? kWarps : kColumns == 32 && kRows == 128 ? 1 : 2;
  static constexpr int kWarpsDown = kWarps / kWarpsAcross;
  static constexpr int kDown = kRows / kWarpsDown / kFragment, kAcross = kColumns / kWarpsAcross / kFragment;
  static constexpr int kBlocks = BlocksPerMultiprocessor(kRows, kColumns);
  static constexpr int kPositions = StepPositions(kRows, kColumns);

  static constexpr int kStages = kDweightStages;
  static constexpr int kSourcePitch = kRows + kTilePad, kCotangentPitch = kColumns + kTilePad;
  static constexpr int kSourceElements = kPositions * kSourcePitch;
  static constexpr int kStageElements = kSourceElements + kPositions * kCotangentPitch;
  static constexpr int kSharedBytes = DweightSharedBytes(kRows, kColumns);
  static_assert(kSharedBytes == kStages * kStageElements * 2);
  // Sums leave through the same memory: 16 rows a warp at a time.
  static constexpr int kPatchPitch = kAcross * kFragment + 4;
  static constexpr int kPatchElements = kFragment * kPatchPitch;
  static_assert(kWarps * kPatchElements * 4 <= kSharedBytes && kThreads * 8 <= kSharedBytes);
};

// A warp's share of a tile's products.
template <typename T, typename Tile>
class TileProducts {
 public:
  KNNCONV_DEVICE TileProducts()
      : first_row_(threadIdx.x / kWarpSize / Tile::kWarpsAcross * Tile::kDown * kFragment),
        first_column_(threadIdx.x / kWarpSize % Tile::kWarpsAcross * Tile::kAcross * kFragment) {
    Clear();
  }

  KNNCONV_DEVICE void Clear() {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j) FillAccumulator(sums_[i][j], 0);
    }
  }

  // Adds the products of kFragment positions from `depth` on.
  KNNCONV_DEVICE void Add(const T* source, const T* cotangent, int depth) {
    if constexpr (!kHasProducts) return;
    source += depth * Tile::kSourcePitch + first_row_;
    cotangent += depth * Tile::kCotangentPitch + first_column_;
    FragmentA<T, Major::kCol> a[Tile::kDown];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) LoadFragment(a[i], source + i * kFragment, Tile::kSourcePitch);
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
      FragmentB<T, Major::kRow> b;
      LoadFragment(b, cotangent + j * kFragment, Tile::kCotangentPitch);
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) MultiplyAdd(sums_[i][j], a[i], b);
    }
  }

  // Writes the part of the tile that exists to `out` [rows, pitch], or adds it to what is there. `shared` is free.
  KNNCONV_DEVICE void Store(float* shared, float* out, int pitch, int rows, int columns, bool add, bool vector) {
    constexpr int kQuads = Tile::kAcross * kFragment / 4;  // of a row
    float* const patch = shared + threadIdx.x / kWarpSize * Tile::kPatchElements;
    out += first_column_;
    columns -= first_column_;
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j) {
        StoreAccumulator(patch + j * kFragment, sums_[i][j], Tile::kPatchPitch);
      }
      SyncWarp();
#pragma unroll 1
      for (int quad = threadIdx.x % kWarpSize; quad < kFragment * kQuads; quad += kWarpSize) {
        const int row = first_row_ + i * kFragment + quad / kQuads, column = quad % kQuads * 4;
        if (row >= rows || column >= columns) continue;
        float4 value = *reinterpret_cast<const float4*>(patch + quad / kQuads * Tile::kPatchPitch + column);
        float* const to = out + int64_t{row} * pitch + column;
        if (vector) {
          float4* const at = reinterpret_cast<float4*>(to);
          if (add) value = {at->x + value.x, at->y + value.y, at->z + value.z, at->w + value.w};
          *at = value;
        } else {
          const float values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (column + k < columns) to[k] = add ? to[k] + values[k] : values[k];
          }
        }
      }
      SyncWarp();
    }
  }

 private:
  const int first_row_, first_column_;
  Accumulator sums_[Tile::kDown][Tile::kAcross];
};

// Sums of the columns of g's tiles: a thread has two columns and some of the rows.
template <typename T, typename Tile>
class ColumnSums {
  static constexpr int kPairs = Tile::kColumns / 2, kParts = Tile::kThreads / kPairs;
  static_assert(Tile::kPositions % kParts == 0);
  struct alignas(2 * sizeof(T)) Pair {
    T first, second;
  };

 public:
  // Rows of the tile are positions of `view` from `position` on; those that do not count are left out.
  template <typename View>
  KNNCONV_DEVICE void Add(const T* cotangent, const View& view, int64_t position) {
    const int part = threadIdx.x / kPairs;
    cotangent += part * Tile::kCotangentPitch + threadIdx.x % kPairs * 2;
    const bool counts_all = !view.has_uncounted_rows();
    float2 step = {0, 0};
#pragma unroll 4
    for (int row = 0; row < Tile::kPositions; row += kParts) {
      if (!counts_all && !view.IsCounted(position + part + row)) continue;
      const Pair pair = *reinterpret_cast<const Pair*>(cotangent + row * Tile::kCotangentPitch);
      step.x += ToFloat(pair.first);
      step.y += ToFloat(pair.second);
    }
    chain_.x += step.x;
    chain_.y += step.y;
  }

  // Bounds a chain of additions, as for the products.
  KNNCONV_DEVICE void EndChain() {
    total_.x += chain_.x;
    total_.y += chain_.y;
    chain_ = {0, 0};
  }

  // Writes the sums of the columns that exist. `shared` is free; all threads call.
  KNNCONV_DEVICE void Store(float2* shared, float* sums, int columns) {
    shared[threadIdx.x] = total_;
    __syncthreads();
    if (threadIdx.x >= kPairs) return;
    float2 sum = shared[threadIdx.x];
#pragma unroll
    for (int part = 1; part < kParts; ++part) {
      sum.x += shared[part * kPairs + threadIdx.x].x;
      sum.y += shared[part * kPairs + threadIdx.x].y;
    }
    const int column = threadIdx.x * 2;
    if (column < columns) sums[column] = sum.x;
    if (column + 1 < columns) sums[column + 1] = sum.y;
  }

 private:
  float2 chain_ = {0, 0}, total_ = {0, 0};
};

}  // namespace knnconv::gpu
