// What a halo kernel puts into shared memory for wgmma: halos, weights, and pairs of pixels.
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
    return {pixels, pixel_class, first_column, part, uniform(down.count), plan.steps_of_group, 0, line_step, 2};
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

// For i from the thread's number on, in steps of `threads`: store(i, load(i)), with kBatch loads in flight; with the
// first in flight, meanwhile().
template <int kBatch, typename Load, typename Store, typename Meanwhile>
KNNCONV_DEVICE void CopyWeights(int count, int threads, const Load& load, const Store& store,
                                const Meanwhile& meanwhile) {
  uint4 value[kBatch];
  const auto load_batch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * threads < count) value[i] = load(first + i * threads);
    }
  };
  int first = static_cast<int>(threadIdx.x);
  load_batch(first);
  meanwhile();
#pragma unroll 1
  while (first < count) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * threads < count) store(first + i * threads, value[i]);
    }
    first += kBatch * threads;
    load_batch(first);
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
template <typename Shape, typename Meanwhile>
KNNCONV_DEVICE void StagePairWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* to,
                                     const Meanwhile& meanwhile) {
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
  CopyWeights<4>(plan.steps * 4 * Shape::kColumns, Shape::kThreads, load, store, meanwhile);
}

// Puts the thread's share of raw lines in place as pairs, and as singles if there are. The last pair's second pixel may
// be none of the halo's.
template <typename T, typename From>
KNNCONV_DEVICE void MakePairs(const gpu::TapGemm& gemm, const HaloPlan& plan, const gpu::HaloPlace& place, int thread,
                              const char* raw, char* to) {
  const gpu::WindowTaps& window = gemm.window;
  const gpu::HaloShare& share = plan.pair_share;
  const gpu::Divisor::Result first = share.by_width.Divide(thread);
  if (first.quotient >= share.rows) return;
  const int depth = gemm.depth, pixel_bytes = depth * static_cast<int>(sizeof(From));
  // Only where in 16 bytes a line starts is of interest.
  const uint32_t line_bits = static_cast<uint32_t>(window.source_size[1]) * pixel_bytes;
  const uint32_t corner_bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place.image)) +
                               place.line * line_bits + place.column * static_cast<uint32_t>(pixel_bytes);
#pragma unroll 1
  for (int pair = first.remainder; pair < plan.pairs; pair += share.width) {
    const int column = place.column + 2 * pair;
    const bool has_first = gpu::IsInside(column, window.source_size[1]);
    const bool has_second = gpu::IsInside(column + 1, window.source_size[1]) && 2 * pair + 1 < plan.halo[1];
#pragma unroll 2
    for (int line = first.quotient; line < plan.halo[0]; line += share.rows) {
      const bool inside = gpu::IsInside(place.line + line, window.source_size[0]);
      const int shift = static_cast<int>((corner_bits + line * line_bits) % 16);
      const From* const at =
          reinterpret_cast<const From*>(raw + line * plan.raw_pitch + shift + 2 * pair * pixel_bytes);
      const uint4 one = gpu::ReadElements<T, gpu::kMostQuadChannels>(at, inside && has_first ? depth : 0, 1);
      const uint4 two = gpu::ReadElements<T, gpu::kMostQuadChannels>(at + depth, inside && has_second ? depth : 0, 1);
      char* const into = to + line * plan.halo_line + pair * 16;
      *reinterpret_cast<uint4*>(into) = make_uint4(one.x, one.y, two.x, two.y);
      if (plan.singles_at > 0) *reinterpret_cast<uint4*>(into + plan.singles_at) = make_uint4(one.x, one.y, 0, 0);
    }
  }
}

}  // namespace knnconv::hopper
