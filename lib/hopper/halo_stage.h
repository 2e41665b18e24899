// What a halo kernel puts into shared memory for wgmma: steps, weights, and halos of pairs.
#pragma once

#include <cstdint>

#include "gpu/halo_stage.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {

// A thread block's place. The same in all threads.
struct HaloBlock : gpu::HaloTaps {
  const char* source;
  const char* weight;  // of the group, from its first slot on
  char* out;
  uint32_t group;
  int first_column, part;  // of the kind's blocks
  int steps;
};

template <typename Shape>
KNNCONV_DEVICE HaloBlock OpenHalo(const gpu::TapGemm& gemm, const HaloPlan& plan) {
  HaloBlock block;
  uint32_t kind = blockIdx.x / plan.blocks_of_kind;
  block.part = static_cast<int>(blockIdx.x - kind * plan.blocks_of_kind);
  block.first_column = static_cast<int>(kind % plan.column_tiles) * Shape::kColumns;
  kind /= plan.column_tiles;
  block.group = kind / plan.classes;
  static_cast<gpu::HaloTaps&>(block) = gpu::FindTaps(gemm, plan, kind % plan.classes);
  block.steps = (Shape::kPairs ? gemm.window.kernel[0] : block.taps) * plan.steps_of_group;

  const int64_t source = gemm.source_groups.Offset(gemm.groups, block.group);
  block.source = static_cast<const char*>(gemm.source) + source * gpu::ElementBytes(gemm.source_type);
  block.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(gemm.groups, block.group) * 2;
  const int64_t out = block.group * gemm.batch * gemm.nodes * gemm.columns;
  block.out = static_cast<char*>(gemm.out) + out * gpu::ElementBytes(gemm.out_type);
  return block;
}

// What a step adds to the description of A: where it lies from a pixel's own place, and how far apart its halves are.
KNNCONV_DEVICE uint32_t StepOf(int at, int lead) {
  return static_cast<uint32_t>(at >> 4) | static_cast<uint32_t>(lead >> 4) << 16;
}

// Steps, slots of taps, and the bias.
template <typename Shape>
KNNCONV_DEVICE void FillTables(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared) {
  uint32_t* const steps = reinterpret_cast<uint32_t*>(shared + plan.steps_at);
  int32_t* const slots = reinterpret_cast<int32_t*>(shared + plan.slots_at);
  if constexpr (Shape::kPairs) {
    for (int i = threadIdx.x; i < block.steps; i += Shape::kThreads) {
      const int line = i / plan.steps_of_group, step = i - line * plan.steps_of_group;
      const int at = line * gemm.window.dilation[0] * plan.line_pitch + step * plan.step_pitch;
      steps[i] = StepOf(at, step == plan.steps_of_group - 1 ? plan.last_lead : plan.lead);
    }
  } else {
    gpu::VisitTaps(gemm, plan, block, Shape::kThreads, [&](int tap, int slot, int at) {
      slots[tap] = slot;
      for (int step = 0; step < plan.steps_of_group; ++step) {
        steps[tap * plan.steps_of_group + step] = StepOf(at + step * plan.step_pitch, plan.lead);
      }
    });
  }
  if (threadIdx.x == 0) steps[block.steps] = 0;
  const float* from = gemm.bias == nullptr ? nullptr : gemm.bias + gemm.bias_groups.Offset(gemm.groups, block.group);
  float* const bias = reinterpret_cast<float*>(shared + plan.bias_at);
  for (int i = threadIdx.x; i < Shape::kColumns; i += Shape::kThreads) {
    const int column = block.first_column + i;
    bias[i] = from != nullptr && column < gemm.columns ? from[column] : 0.0f;
  }
}

// Where in a step's weights (two halves of 8 in depth, of cores of 8 columns) a core's line of 16 bytes lies.
template <typename Shape>
KNNCONV_DEVICE int CoreLine(int half, int core, int line) {
  return (half * (Shape::kColumns / 8) + core) * 128 + line * 16;
}

// Weights as wgmma's B, columns dealt so that a lane ends with neighbours (ColumnDeal). Not transposed, a core's lines
// are depths, and 16 bytes of memory are four pieces; transposed, they are columns.
template <typename Shape>
KNNCONV_DEVICE void StageChunkWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                                      char* shared) {
  using T = typename Shape::T;
  using Deal = typename Shape::Deal;
  const int32_t* const slots = reinterpret_cast<const int32_t*>(shared + plan.slots_at);
  const T* const weight = reinterpret_cast<const T*>(block.weight);
  char* const to = shared + plan.weight_at;
  constexpr int kLine = Shape::kTransposed ? Shape::kColumns : Shape::kColumns / gpu::kHaloChunk;
  // Unit i: 16 bytes, of a column (not transposed: of 8) in a step's half (not transposed: at one depth).
  const auto load = [&](int i) {
    const int inner = i % kLine, depth = i / kLine * (Shape::kTransposed ? gpu::kHaloChunk : 1);
    const int column = block.first_column + inner * (Shape::kTransposed ? 1 : gpu::kHaloChunk);
    const int tap = depth / (plan.stored_chunks * gpu::kHaloChunk);
    const int channel = depth - tap * plan.stored_chunks * gpu::kHaloChunk;
    if (column >= gemm.columns || channel >= gemm.depth) return make_uint4(0, 0, 0, 0);
    const int64_t slot = int64_t{slots[tap]} * gemm.depth * gemm.columns;
    const int64_t at = slot + (Shape::kTransposed ? int64_t{column} * gemm.depth + channel
                                                  : int64_t{channel} * gemm.columns + column);
    return gpu::ReadOnly(reinterpret_cast<const uint4*>(weight + at));
  };
  const auto store = [&](int i, const uint4& bits) {
    const int inner = i % kLine, outer = i / kLine;
    if constexpr (Shape::kTransposed) {
      const int position = Deal::Position(inner);
      char* const step = to + outer / 2 * Shape::kStepBytes;
      *reinterpret_cast<uint4*>(step + CoreLine<Shape>(outer % 2, position / 8, position % 8)) = bits;
    } else {
      char* const step = to + outer / kStepElements * Shape::kStepBytes;
      const uint32_t two[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = Deal::Position(inner * gpu::kHaloChunk + i * 2);
        char* const line = step + CoreLine<Shape>(outer / 8 % 2, position / 8, outer % 8);
        *reinterpret_cast<uint32_t*>(line + position % 8 * 2) = two[i];
      }
    }
  };
  const int units = block.steps * kStepElements / (Shape::kTransposed ? gpu::kHaloChunk : 1) * kLine;
  gpu::CopyBatched<4>(units, Shape::kThreads, load, store);
}

// The same for pairs: a core's lines are columns, of two taps with 4 channels each.
template <typename Shape>
KNNCONV_DEVICE void StagePairWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                                     char* shared) {
  using T = typename Shape::T;
  const T* const weight = reinterpret_cast<const T*>(block.weight);
  char* const to = shared + plan.weight_at;
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
  gpu::CopyBatched<4>(block.steps * 4 * Shape::kColumns, Shape::kThreads, load, store);
}

// Puts the thread's share of raw lines in place as pairs, and as singles if there are.
template <typename T, typename From>
KNNCONV_DEVICE void PlacePairs(const gpu::TapGemm& gemm, const HaloPlan& plan, const gpu::HaloPlace& place, int thread,
                               const char* raw, char* to) {
  const gpu::WindowTaps& window = gemm.window;
  const gpu::HaloShare& share = plan.pair_share;
  const gpu::Divisor::Result first = share.by_width.Divide(thread);
  if (first.quotient >= share.rows) return;
  const int depth = gemm.depth, pixel_bytes = depth * static_cast<int>(sizeof(From));
  const int64_t line_bytes = int64_t{window.source_size[1]} * pixel_bytes;
  const char* const corner = place.image + place.line * line_bytes + int64_t{place.column} * pixel_bytes;
#pragma unroll 1
  for (int pair = first.remainder; pair < plan.pairs; pair += share.width) {
    const int column = place.column + 2 * pair;
    const bool has_first = gpu::IsInside(column, window.source_size[1]);
    const bool has_second = gpu::IsInside(column + 1, window.source_size[1]) && 2 * pair + 1 < plan.halo[1];
#pragma unroll 2
    for (int line = first.quotient; line < plan.halo[0]; line += share.rows) {
      const bool inside = gpu::IsInside(place.line + line, window.source_size[0]);
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(corner + line * line_bytes) % 16);
      const From* const at =
          reinterpret_cast<const From*>(raw + line * plan.raw_pitch + shift + 2 * pair * pixel_bytes);
      const uint4 one = gpu::ReadElements<T, gpu::kMostQuadChannels>(at, inside && has_first ? depth : 0, 1);
      const uint4 two = gpu::ReadElements<T, gpu::kMostQuadChannels>(at + depth, inside && has_second ? depth : 0, 1);
      char* const into = to + line * plan.line_pitch + pair * 16;
      *reinterpret_cast<uint4*>(into) = make_uint4(one.x, one.y, two.x, two.y);
      if (plan.singles_at > 0) *reinterpret_cast<uint4*>(into + plan.singles_at) = make_uint4(one.x, one.y, 0, 0);
    }
  }
}

// Zeros for the chunk that a line has besides those of its pixels, which copies leave alone.
KNNCONV_DEVICE void ClearLastChunk(const HaloPlan& plan, int thread, char* halo) {
  if (plan.stored_chunks == plan.chunks) return;
  const int units = plan.chunk_pitch / 16;
  for (int i = thread; i < units * plan.halo[0]; i += kTeamThreads) {
    char* const chunk = halo + i / units * plan.line_pitch + plan.chunks * plan.chunk_pitch;
    *reinterpret_cast<uint4*>(chunk + i % units * 16) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace knnconv::hopper
