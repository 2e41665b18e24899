// What a halo kernel puts into shared memory for wgmma: steps, weights, and pairs of pixels.
#pragma once

#include <cstdint>

#include "gpu/halo_stage.h"
#include "hopper/halo_plan.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// A thread block's place. The same in all threads.
struct HaloBlock {
  const PixelClass& pixels;
  int first_column, part;  // of the kind's blocks
  int steps;
};

template <typename Shape>
KNNCONV_DEVICE HaloBlock OpenHalo(const gpu::TapGemm& gemm, const HaloPlan& plan) {
  uint32_t kind = blockIdx.x / plan.blocks_of_kind;
  const int part = static_cast<int>(blockIdx.x - kind * plan.blocks_of_kind);
  const int first_column = static_cast<int>(kind % plan.column_tiles) * Shape::kColumns;
  const PixelClass& pixels = plan.classes_of_pixels.of[kind / plan.column_tiles];
  const int groups = pixels.line[0].count * (Shape::kPairs ? 1 : pixels.line[1].count);
  return {pixels, first_column, part, groups * plan.steps_of_group};
}

// Loads what a tile needs of the source to `to`. By one thread.
template <typename Shape>
KNNCONV_DEVICE void LoadHalo(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                             const CUtensorMap& source, int tile_number, char* to, Barrier* full) {
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int line = tile.i * plan.step[0] + block.pixels.corner[0];
  const int column = tile.j * plan.step[1] + block.pixels.corner[1];
  full->ArriveExpecting(plan.copied_bytes);
  if constexpr (Shape::kPairs) {
    LoadBox(to, &source, full, column * gemm.depth, line, tile.image);
  } else {
    LoadBox(to, &source, full, 0, column, line, tile.image);
  }
}

// Steps: what each adds to the description of A (where it lies from a pixel's own place, and with pairs, how far apart its
// halves are), and one that is read ahead; the bias.
template <typename Shape>
KNNCONV_DEVICE void FillTables(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared) {
  uint32_t* const steps = reinterpret_cast<uint32_t*>(shared + plan.steps_at);
  const PixelLine &down = block.pixels.line[0], &across = block.pixels.line[1];
  for (int i = threadIdx.x; i <= block.steps; i += Shape::kThreads) {
    const int group = i / plan.steps_of_group, step = i - group * plan.steps_of_group;
    if constexpr (Shape::kPairs) {
      const int at = group * down.offset_step * plan.halo_line + step * 32;
      const int lead = step == plan.steps_of_group - 1 ? plan.last_lead : plan.lead;
      steps[i] = static_cast<uint32_t>(at >> 4) | static_cast<uint32_t>(lead >> 4) << 16;
    } else {
      const int line = across.count > 0 ? group / across.count : 0, column = group - line * across.count;
      const int at = (down.offset + line * down.offset_step) * plan.halo_line +
                     (across.offset + column * across.offset_step) * plan.pixel_bytes + step * kHaloDepth * 2;
      steps[i] = i < block.steps ? static_cast<uint32_t>(at >> 4) : 0;
    }
  }
  float* const bias = reinterpret_cast<float*>(shared + plan.bias_at);
  for (int i = threadIdx.x; i < Shape::kColumns; i += Shape::kThreads) {
    const int column = block.first_column + i;
    bias[i] = gemm.bias != nullptr && column < gemm.columns ? gemm.bias[column] : 0.0f;
  }
}

// For i from the thread's number on, in steps of `threads`: store(i, load(i)), with kBatch loads in flight; with the first
// in flight, meanwhile().
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

// Weights as wgmma's B, columns dealt so that a lane ends with neighbours (ColumnDeal). Not transposed, a core's lines
// are depths, and 16 bytes of memory are four pieces; transposed, they are columns.
template <typename Shape, typename Meanwhile>
KNNCONV_DEVICE void StageLineWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* to,
                                     const Meanwhile& meanwhile) {
  using T = typename Shape::T;
  using Deal = typename Shape::Deal;
  const PixelLine &down = block.pixels.line[0], &across = block.pixels.line[1];
  const T* const weight = static_cast<const T*>(gemm.weight);
  constexpr int kLine = Shape::kTransposed ? Shape::kColumns : Shape::kColumns / gpu::kHaloChunk;
  constexpr int kDepth = Shape::kTransposed ? gpu::kHaloChunk : 1;
  // Unit i: 16 bytes, of a column (not transposed: of 8) in a step's half (not transposed: at one depth).
  const auto load = [&](int i) {
    const int column = block.first_column + i % kLine * (Shape::kTransposed ? 1 : gpu::kHaloChunk);
    const gpu::Divisor::Result tap = plan.by_group_depth.Divide(i / kLine * kDepth);
    const int channel = tap.remainder, line = tap.quotient / across.count;
    if (column >= gemm.columns || channel >= gemm.depth) return make_uint4(0, 0, 0, 0);
    const int slot = (down.slot + line * down.slot_step) * gemm.window.kernel[1] + across.slot +
                     (tap.quotient - line * across.count) * across.slot_step;
    const int at = Shape::kTransposed ? column * gemm.depth + channel : channel * gemm.columns + column;
    return gpu::ReadOnly(reinterpret_cast<const uint4*>(weight + int64_t{slot} * gemm.depth * gemm.columns + at));
  };
  const auto store = [&](int i, const uint4& bits) {
    const int inner = i % kLine, outer = i / kLine;
    if constexpr (Shape::kTransposed) {
      const int position = Deal::Position(inner);
      char* const step = to + outer / 2 * Shape::kStepBytes;
      *reinterpret_cast<uint4*>(step + CoreLine<Shape>(outer % 2, position / 8, position % 8)) = bits;
    } else {
      char* const step = to + outer / kHaloDepth * Shape::kStepBytes;
      const uint32_t two[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int position = Deal::Position(inner * gpu::kHaloChunk + pair * 2);
        char* const line = step + CoreLine<Shape>(outer / 8 % 2, position / 8, outer % 8);
        *reinterpret_cast<uint32_t*>(line + position % 8 * 2) = two[pair];
      }
    }
  };
  CopyWeights<4>(block.steps * kHaloDepth / kDepth * kLine, Shape::kThreads, load, store, meanwhile);
}

// The same for pairs: a core's lines are columns, of two taps with 4 channels each.
template <typename Shape, typename Meanwhile>
KNNCONV_DEVICE void StagePairWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* to,
                                     const Meanwhile& meanwhile) {
  using T = typename Shape::T;
  const T* const weight = static_cast<const T*>(gemm.weight);
  const int line_taps = plan.steps_of_group * 4;
  // Unit i: a column's channels of one tap; the kernel's lines are filled up to whole steps.
  const auto load = [&](int i) {
    const int tap = i / Shape::kColumns, column = block.first_column + i % Shape::kColumns;
    const int line = tap / line_taps, across = tap - line * line_taps;
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
  CopyWeights<4>(block.steps * 4 * Shape::kColumns, Shape::kThreads, load, store, meanwhile);
}

// Two neighbouring pixels of `depth` channels each, as 4 elements of type T each.
template <typename T, typename From>
KNNCONV_DEVICE uint4 ReadPair(const From* from, int depth) {
  if constexpr (sizeof(From) == 2) {
    if (depth == 3) {
      const uint32_t* const words = reinterpret_cast<const uint32_t*>(from);
      const uint32_t first = words[0], second = words[1], third = words[2];
      return make_uint4(first, second & 0xffff, __funnelshift_r(second, third, 16), third >> 16);
    }
  }
  const uint4 one = gpu::ReadElements<T, gpu::kMostQuadChannels>(from, depth, 1);
  const uint4 two = gpu::ReadElements<T, gpu::kMostQuadChannels>(from + depth, depth, 1);
  return make_uint4(one.x, one.y, two.x, two.y);
}

// Makes the thread's share of a halo's pairs, and singles if there are. The last pair's second pixel may be none of the
// halo's: no tap reads it.
template <typename T, typename From>
KNNCONV_DEVICE void MakePairs(const HaloPlan& plan, int depth, int thread, const char* raw, char* to) {
  const gpu::Divisor::Result first = plan.pair_share.by_width.Divide(thread);
  if (first.quotient >= plan.pair_share.rows) return;
#pragma unroll 1
  for (int pair = first.remainder; pair < plan.pairs; pair += plan.pair_share.width) {
    const char* from = raw + first.quotient * plan.raw_line + 2 * pair * depth * static_cast<int>(sizeof(From));
    char* into = to + first.quotient * plan.halo_line + pair * 16;
#pragma unroll 2
    for (int line = first.quotient; line < plan.halo[0]; line += plan.pair_share.rows) {
      const uint4 bits = ReadPair<T>(reinterpret_cast<const From*>(from), depth);
      *reinterpret_cast<uint4*>(into) = bits;
      if (plan.singles_at > 0) *reinterpret_cast<uint4*>(into + plan.singles_at) = make_uint4(bits.x, bits.y, 0, 0);
      from += plan.pair_share.rows * plan.raw_line;
      into += plan.pair_share.rows * plan.halo_line;
    }
  }
}

}  // namespace knnconv::hopper
