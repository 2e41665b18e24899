// What a halo kernel puts into shared memory for wgmma: halos and weights.
#pragma once

#include <cstdint>

#include "gpu/halo_stage.h"
#include "hopper/halo_plan.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// A thread block's place. The same in all threads.
struct HaloBlock {
  const PixelClass& pixels;
  uint32_t pixel_class;
  int first_column, part;  // of the kind's blocks
  // Steps of the main loop: `lines` times `columns` taps (with pairs, steps), the first of which reads `first_at` bytes
  // from a pixel's own place. From one to the next below or beside it, in units of a description's address.
  int lines, columns, first_at, line_step, column_step;
};

template <typename Shape>
KNNCONV_DEVICE HaloBlock OpenHalo(const gpu::TapGemm& gemm, const HaloPlan& plan) {
  const auto uniform = [](int value) { return __shfl_sync(kAllLanes, value, 0); };  // as the compiler sees it
  const uint32_t kind = blockIdx.x / plan.blocks_of_kind;
  const int part = static_cast<int>(blockIdx.x - kind * plan.blocks_of_kind);
  const int first_column = static_cast<int>(kind % plan.column_tiles) * Shape::kColumns;
  const uint32_t pixel_class = kind / plan.column_tiles;
  const PixelClass& pixels = plan.classes_of_pixels.of[pixel_class];
  const PixelLine &down = pixels.line[0], &across = pixels.line[1];
  const int line_step = uniform(down.offset_step * plan.halo_line / 16);
  if constexpr (Shape::kPairs) {
    return {pixels, pixel_class, first_column, part, uniform(down.count), plan.steps_of_group, 0, line_step,
            2 * plan.pair_step};
  }
  const int first_at = uniform(down.offset * plan.halo_line + across.offset * plan.pixel_bytes);
  const int column_step = uniform(across.offset_step * plan.pixel_bytes / 16);
  const int lines = uniform(down.count), columns = uniform(across.count);
  return {pixels, pixel_class, first_column, part, lines, columns, first_at, line_step, column_step};
}

// Loads a tile's halo of lines to `to`. By one thread.
KNNCONV_DEVICE void LoadHalo(const HaloPlan& plan, const HaloBlock& block, const CUtensorMap& source, int tile_number,
                             char* to, Barrier* full) {
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  full->ArriveExpecting(plan.copied_bytes);
  LoadBox(to, &source, full, 0, tile.j * plan.step[1] + block.pixels.corner[1],
          tile.i * plan.step[0] + block.pixels.corner[0], tile.image);
}

template <typename Shape>
KNNCONV_DEVICE void FillBias(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared) {
  float* const bias = reinterpret_cast<float*>(shared + plan.bias_at);
  for (int i = threadIdx.x; i < Shape::kColumns; i += Shape::kThreads) {
    const int column = block.first_column + i;
    bias[i] = gemm.bias != nullptr && column < gemm.columns ? gemm.bias[column] : 0.0f;
  }
}

// Where in a step's weights (two halves of 8 in depth, of cores of 8 columns) a core's line of 16 bytes lies.
template <typename Shape>
KNNCONV_DEVICE int CoreLine(int half, int core, int line) {
  return (half * (Shape::kColumns / 8) + core) * 128 + line * 16;
}

// Loads the weights of a line of the block's taps. By one thread.
template <typename Shape>
KNNCONV_DEVICE void LoadWeightLine(const gpu::TapGemm& gemm, const HaloBlock& block, const CUtensorMap& weight,
                                   int line, char* to, Barrier* full) {
  const PixelLine &down = block.pixels.line[0], &across = block.pixels.line[1];
  const int first_slot = (down.slot + line * down.slot_step) * gemm.window.kernel[1] + across.slot;
  full->ArriveExpecting(block.columns * Shape::kGroupBytes);
#pragma unroll 1
  for (int i = 0; i < block.columns; ++i) {
    const int slot = first_slot + i * across.slot_step, row = Shape::kTransposed ? block.first_column : 0;
    LoadBox(to + (line * block.columns + i) * Shape::kGroupBytes, &weight, full,
            Shape::kTransposed ? 0 : block.first_column, row, slot);
  }
}

// Weights of pairs as wgmma's B: a core's lines are columns, of two taps with 4 channels each.
template <typename Shape>
KNNCONV_DEVICE void StagePairWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                                     char* to) {
  using T = typename Shape::T;
  const T* const weight = static_cast<const T*>(gemm.weight);
  // Unit i: a column's channels of one tap; lines of taps are filled up to whole steps.
  const auto load = [&](int i) {
    const int tap = i / Shape::kColumns, column = block.first_column + i % Shape::kColumns;
    const int line = tap / (plan.steps_of_group * 4), across = tap - line * plan.steps_of_group * 4;
    const bool exists = across < gemm.window.kernel[1] && column < gemm.columns;
    const int64_t slot = int64_t{line} * gemm.window.kernel[1] + across;
    const int64_t at = exists ? slot * gemm.depth * gemm.columns + column : 0;
    return gpu::ReadElements<T, gpu::kMostQuadChannels>(weight + at, exists ? gemm.depth : 0, gemm.columns);
  };
  const auto store = [&](int i, const uint4& bits) {
    const int tap = i / Shape::kColumns, position = Shape::Deal::Position(i % Shape::kColumns);
    char* const line = to + tap / 4 * Shape::kStepBytes + CoreLine<Shape>(tap / 2 % 2, position / 8, position % 8);
    *reinterpret_cast<uint2*>(line + tap % 2 * 8) = make_uint2(bits.x, bits.y);
  };
  gpu::CopyBatched<4>(plan.steps * 4 * Shape::kColumns, Shape::kThreads, load, store);
}

}  // namespace knnconv::hopper
