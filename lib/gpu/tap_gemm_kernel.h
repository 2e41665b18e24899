// The kernel of a TapGemm: one tile [rows, columns] of the result a thread block, fp32 accumulators in registers.
//
//     for each round of layers, for each step of kDepth of (layer, channel):
//         A [rows, kDepth] = gathered source rows,  B [kDepth, columns] = weight rows    (shared memory)
//         acc += A @ B                                                                   (4 warps, 16x16x16 fragments)
//     out = round(acc + bias)
//
// Large tiles are bound by shared memory bandwidth of the fragments' loads, small ones by the gathers' latency.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/fault.h"
#include "gpu/fragment.h"
#include "gpu/knockout.h"
#include "gpu/lanes.h"
#include "gpu/tap_cells.h"
#include "gpu/tap_layers.h"
#include "gpu/tap_staging.h"

namespace knnconv::gpu {

// How the tile's columns and rows are shared among warps.
template <int kRows, int kColumns>
struct WarpGrid {
  static constexpr int kWarps = kTapThreads / kWarpSize;
  static constexpr int kAcross = kRows == 16 ? (kColumns / kFragment < kWarps ? kColumns / kFragment : kWarps)
                                             : (kColumns == 32 && kRows >= 64 ? 1 : 2);
  static constexpr int kDown = kRows == 16 ? 1 : kWarps / kAcross;
  static constexpr int kUsed = kAcross * kDown;
  static constexpr int kWarpRows = kRows / kDown, kWarpColumns = kColumns / kAcross;
  static constexpr int kHigh = kWarpRows / kFragment, kWide = kWarpColumns / kFragment;  // fragments of a warp
};

template <typename Shape_, Staging kStaging_>
struct TapKernel {
  using Shape = Shape_;
  static constexpr Staging kStaging = kStaging_;
  using T = typename Shape::T;
  using Warps = WarpGrid<Shape::kRows, Shape::kColumns>;
  using Table = TapTable<Shape::kRows>;
  using Stager = std::conditional_t<kStaging == Staging::kAsync, VectorStager<Shape>,
                                    std::conditional_t<kStaging == Staging::kAny, AnyStager<Shape>, CellStager<Shape>>>;
  static constexpr int kStages = kTapStages;
  static constexpr int kStage = Shape::kStage + (kStaging == Staging::kCells ? Shape::kElementsA : 0);  // elements
  static constexpr int kOutPitch = Warps::kWarpColumns + 4;  // of a warp's fp32 results in shared memory
  static constexpr int kStageBytes = kStages * kStage * 2;
  static constexpr int kOutBytes = Warps::kUsed * Warps::kWarpRows * kOutPitch * 4;
  static_assert(kOutBytes <= kStageBytes, "what a launch asks for is the same for every warp size");
  static constexpr int kTableOffset = (kStageBytes + 15) / 16 * 16;
  static constexpr int kSharedBytes = kTableOffset + sizeof(Table);
  static_assert(kSharedBytes == TapSharedBytes(Shape::kRows, Shape::kColumns, Shape::kTransposed, kStaging));
};

template <typename Shape, Staging kStaging>
using TapAccumulators = Accumulator[WarpGrid<Shape::kRows, Shape::kColumns>::kHigh]
                                   [WarpGrid<Shape::kRows, Shape::kColumns>::kWide];

// acc += A @ B over the first `depth` of one staged step.
template <typename Shape, Staging kStaging>
KNNCONV_DEVICE void MultiplyStep(TapAccumulators<Shape, kStaging>& acc, const typename Shape::T* a,
                                 const typename Shape::T* b, int depth) {
  if constexpr (!kHasProducts) return;
  using T = typename Shape::T;
  using Warps = WarpGrid<Shape::kRows, Shape::kColumns>;
  constexpr Major kMajorB = Shape::kTransposed ? Major::kCol : Major::kRow;
  const int warp = threadIdx.x / kWarpSize;
  const int row = warp / Warps::kAcross * Warps::kWarpRows, column = warp % Warps::kAcross * Warps::kWarpColumns;
#pragma unroll
  for (int k = 0; k < kDepth; k += kFragment) {
    if (k >= depth) break;
    FragmentA<T, Major::kRow> left[Warps::kHigh];
    FragmentB<T, kMajorB> right[Warps::kWide];
#pragma unroll
    for (int i = 0; i < Warps::kHigh; ++i) {
      LoadFragment(left[i], a + (row + i * kFragment) * kDepthPitch + k, kDepthPitch);
    }
#pragma unroll
    for (int j = 0; j < Warps::kWide; ++j) {
      const int at = column + j * kFragment;
      LoadFragment(right[j], b + (Shape::kTransposed ? at * Shape::kColumnPitch + k : k * Shape::kColumnPitch + at),
                   Shape::kColumnPitch);
    }
#pragma unroll
    for (int i = 0; i < Warps::kHigh; ++i) {
#pragma unroll
      for (int j = 0; j < Warps::kWide; ++j) MultiplyAdd(acc[i][j], left[i], right[j]);
    }
  }
}

// Stores 8 neighbouring results of a row, `count` of them.
template <typename T>
KNNCONV_DEVICE void StoreChunk(T* out, const float (&value)[kChunk], int count) {
  constexpr int kBytes = kChunk * sizeof(T);
  if (count == kChunk && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
    union {
      uint4 bits[kBytes / 16];
      T element[kChunk];
    } packed = {};
#pragma unroll
    for (int e = 0; e < kChunk; ++e) packed.element[e] = FromFloat<T>(value[e]);
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) reinterpret_cast<uint4*>(out)[i] = packed.bits[i];
  } else {
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      if (e < count) out[e] = FromFloat<T>(value[e]);
    }
  }
}

// out = round(acc + bias), each warp's part through `shared`, so that stores are 16 bytes wide.
template <typename Shape, Staging kStaging>
KNNCONV_DEVICE void WriteTile(const TapGemm& gemm, const TapTile& tile, const TapTable<Shape::kRows>& table,
                              const TapAccumulators<Shape, kStaging>& acc, float* shared) {
  using Warps = WarpGrid<Shape::kRows, Shape::kColumns>;
  constexpr int kPitch = TapKernel<Shape, kStaging>::kOutPitch;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (warp >= Warps::kUsed) return;
  float* results = shared + warp * Warps::kWarpRows * kPitch;
#pragma unroll
  for (int i = 0; i < Warps::kHigh; ++i) {
#pragma unroll
    for (int j = 0; j < Warps::kWide; ++j) {
      StoreAccumulator(results + i * kFragment * kPitch + j * kFragment, acc[i][j], kPitch);
    }
  }
  SyncWarp();

  constexpr int kLine = Warps::kWarpColumns / kChunk;
  static_assert(kWarpSize % kLine == 0, "a lane stays with its columns");
  const int first_row = warp / Warps::kAcross * Warps::kWarpRows, inner = lane % kLine * kChunk;
  const int column = tile.first_column + warp % Warps::kAcross * Warps::kWarpColumns + inner;
  const int count = min(kChunk, gemm.columns - column);
  if (count <= 0) return;
  float bias[kChunk];
#pragma unroll
  for (int e = 0; e < kChunk; ++e) bias[e] = tile.bias != nullptr && e < count ? tile.bias[column + e] : 0.0f;
#pragma unroll 4
  for (int line = lane / kLine; line < Warps::kWarpRows; line += kWarpSize / kLine) {
    const int row = first_row + line, node = table.row[row].node;
    if (node == Shape::kRows) continue;
    const float4* from = reinterpret_cast<const float4*>(results + line * kPitch + inner);
    const float4 low = from[0], high = from[1];
    float value[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const bool empty = gemm.zero_empty_rows && !IsLive(table, node);
#pragma unroll
    for (int e = 0; e < kChunk; ++e) value[e] = empty ? 0.0f : value[e] + bias[e];
    const int64_t at = OutRow(gemm, tile, table, row) * gemm.columns + column;
    if (gemm.out_type == Element::kF32) {
      StoreChunk(reinterpret_cast<float*>(tile.out) + at, value, count);
    } else if (gemm.out_type == Element::kF16) {
      StoreChunk(reinterpret_cast<Half*>(tile.out) + at, value, count);
    } else {
      StoreChunk(reinterpret_cast<BFloat*>(tile.out) + at, value, count);
    }
  }
}

// Blocks of a multiprocessor, as registers and shared memory allow.
template <typename Shape, Staging kStaging>
inline constexpr int kBlocks = Shape::kColumns == 128 && (Shape::kRows == 128 || kStaging == Staging::kCells) ? 2 : 3;

template <typename Shape, Staging kStaging>
__global__ void KNNCONV_LAUNCH_BOUNDS(kTapThreads, (kBlocks<Shape, kStaging>))
    TapGemmKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER TapGrid grid, bool vector_a,
                  bool vector_b) {
  using T = typename Shape::T;
  using Kernel = TapKernel<Shape, kStaging>;
  if constexpr (kHasTensorCores<T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    T* stages = reinterpret_cast<T*>(shared);
    auto& table = *reinterpret_cast<typename Kernel::Table*>(shared + Kernel::kTableOffset);
    const TapTile tile = OpenTile<Shape::kRows, Shape::kColumns>(gemm, grid, table);
    if (tile.rows == 0) return;
    if constexpr (kStaging == Staging::kCells) {
      OpenCells(gemm, tile, table);
    } else {
      if (gemm.kind == Taps::kRows || gemm.kind == Taps::kSources) OpenLists(gemm, tile, table);
    }

    TapAccumulators<Shape, kStaging> acc;
#pragma unroll
    for (auto& row : acc) {
#pragma unroll
      for (auto& fragment : row) FillAccumulator(fragment, 0.0f);
    }
    const bool multiplies = threadIdx.x / kWarpSize < Kernel::Warps::kUsed;
    auto stage = [&](int step) { return stages + step % Kernel::kStages * Kernel::kStage; };
    auto next_layers = [&](TapProgress& progress) {
      if constexpr (kStaging == Staging::kCells) {
        return NextCells(gemm, tile, table, progress);
      } else {
        return NextLayers(gemm, tile, table, progress);
      }
    };

    const typename Kernel::Stager stager(gemm, grid, tile, table, vector_a, vector_b);
    TapProgress progress;
    for (int active; (active = next_layers(progress)) != kNoLayers;) {
      const int whole = active * gemm.depth, steps = (whole + kDepth - 1) / kDepth;
      // Copies run kStages - 1 steps ahead of the products; the first rounds of the loop only copy.
      bool low_parts = false;  // of the step staged last, in any thread after the barrier
      for (int step = 1 - Kernel::kStages; step < steps; ++step) {
        bool low = false;
        if (kHasBarriers && step >= 0) {
          WaitForCopies<Kernel::kStages - 2>();
          if constexpr (kStaging == Staging::kCells) {
            low = SyncThreadsOr<kTapThreads>(low_parts);
          } else if (kFault != Fault::kDroppedBarrier) {
            __syncthreads();
          }
        }
        const int ahead = step + Kernel::kStages - 1;
        T* const next = stage(ahead);
        if constexpr (kStaging == Staging::kCells) {
          if (ahead < steps) low_parts = stager.Stage(next, next + 2 * Shape::kElementsA, ahead, active);
        } else {
          if (ahead < steps) stager.Stage(next, next + Shape::kElementsA, ahead, active);
        }
        CommitCopies();
        if (step < 0 || !multiplies) continue;
        const T* a = stage(step);
        const T* b = a + (Kernel::kStage - Shape::kElementsB);
        const int depth = whole - step * kDepth;
        MultiplyStep<Shape, kStaging>(acc, a, b, depth);
        if (low) MultiplyStep<Shape, kStaging>(acc, a + Shape::kElementsA, b, depth);
      }
      WaitForCopies<0>();
      __syncthreads();
    }
    WriteTile<Shape, kStaging>(gemm, tile, table, acc, reinterpret_cast<float*>(shared));
  }
}

}  // namespace knnconv::gpu
