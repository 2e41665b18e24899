// A halo kernel's thread block: its share of the result, and the table of its taps in shared memory.
#pragma once

#include <cstdint>

#include "gpu/halo_plan.h"
#include "gpu/matrix_ops.h"

namespace knnconv::gpu {

// How columns of a tile are dealt to products of 8 columns, so that a lane ends with neighbours: of each group of up to 4
// products (32 columns), lane t of a quad holds columns kWidth * t and the kWidth - 1 after it. kTiles: products of a tile.
template <int kTiles>
struct ColumnDeal {
  static constexpr int kGroup = kTiles < 4 ? kTiles : 4;  // products
  static constexpr int kGroups = kTiles / kGroup;
  static constexpr int kWidth = 2 * kGroup;
  static_assert(kTiles % kGroup == 0);

  // Where a column of the tile stands among all products' columns.
  KNNCONV_DEVICE static int Position(int column) {
    const int group = column / (8 * kGroup), inner = column % (8 * kGroup);
    return (group * kGroup + inner % kWidth / 2) * 8 + inner / kWidth * 2 + inner % 2;
  }
};

// T: the type of products. kQuads: source pixels of up to 4 channels, else of 16-byte chunks. kHigh: rows of 16 pixels that a
// warp has.
template <typename T_, bool kQuads_, bool kTransposed_, int kTiles_>
struct HaloShape {
  using T = T_;
  using Deal = ColumnDeal<kTiles_>;
  static constexpr bool kQuads = kQuads_, kTransposed = kTransposed_;
  static constexpr HaloFixed kFixed = HaloFixedOf(kQuads, kTiles_);
  static constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
  static constexpr int kTiles = kTiles_, kHigh = kFixed.rows / kWarps / 16, kBlocks = kFixed.blocks;
  static constexpr int kRows = kFixed.rows, kColumns = kFixed.columns;
  static constexpr int kPerStep = kQuads ? 4 : 2;  // table entries of a step of the main loop, 16 deep
  // Bytes between rows of weights, where rows are depths. 8 rows' 16 bytes lie in different banks.
  static constexpr int kWeightPitch = HaloWeightPitch(kColumns);
};

// Where a step's operands lie: `at`, in bytes, from a pixel's own place; `mask` is all ones, or 0 where there is no tap and
// `at` is the place of zeros.
struct HaloEntry {
  int32_t at, mask;
};

// The same in all threads.
struct HaloBlock {
  const char* source;
  const char* weight;  // of the group, from its first slot on
  const float* bias;
  char* out;
  int first_column;
  int residue[2];  // of the class
  int origin[2];   // of the halo, from pixel (0, 0) of the class
  int size[2];     // pixels of the class
  int taps;
  int part;        // of the kind's blocks
};

// Taps of one dimension for one residue. Tap f reads the source `offset` pixels from a pixel's own place.
KNNCONV_DEVICE bool FindTap(const WindowTaps& window, int dimension, int residue, int f, int* offset) {
  if (!window.transposed) {
    *offset = f * window.dilation[dimension] - window.padding[dimension];
    return true;
  }
  const int distance = residue + window.padding[dimension] - f * window.dilation[dimension];
  *offset = distance / window.stride[dimension];
  return *offset * window.stride[dimension] == distance;
}

// The number of taps before f, and the least of their offsets.
KNNCONV_DEVICE int CountTaps(const WindowTaps& window, int dimension, int residue, int f, int* least) {
  int count = 0;
  *least = 0;
KNNCONV_ROLLED
  for (int before = 0; before < f; ++before) {
    int offset;
    if (!FindTap(window, dimension, residue, before, &offset)) continue;
    *least = count == 0 ? offset : min(*least, offset);
    ++count;
  }
  return count;
}

// Finds the block's place and fills the table; `shared` is all of the block's. Ends with all threads in step.
template <typename Shape>
KNNCONV_DEVICE HaloBlock OpenHalo(const TapGemm& gemm, const HaloPlan& plan, char* shared) {
  HaloBlock block;
  const WindowTaps& window = gemm.window;
  uint32_t kind = blockIdx.x / plan.blocks_of_kind;
  block.part = static_cast<int>(blockIdx.x - kind * plan.blocks_of_kind);
  block.first_column = static_cast<int>(kind % plan.column_tiles) * Shape::kColumns;
  kind /= plan.column_tiles;
  const uint32_t pixel_class = kind % plan.classes, group = kind / plan.classes;
  const uint32_t classes_across = static_cast<uint32_t>(min(plan.spacing[1], window.out_size[1]));
  block.residue[0] = static_cast<int>(pixel_class / classes_across);
  block.residue[1] = static_cast<int>(pixel_class % classes_across);

  const GroupShape& shape = gemm.groups;
  const int64_t source_offset = gemm.source_groups.Offset(shape, group);
  block.source = static_cast<const char*>(gemm.source) + source_offset * ElementBytes(gemm.source_type);
  block.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, group) * 2;
  block.bias = gemm.bias == nullptr ? nullptr : gemm.bias + gemm.bias_groups.Offset(shape, group) + block.first_column;
  const int64_t out_offset = group * gemm.batch * gemm.nodes * gemm.columns;
  block.out = static_cast<char*>(gemm.out) + out_offset * ElementBytes(gemm.out_type);

  int count[2];
  for (int d = 0; d < 2; ++d) {
    block.size[d] = (window.out_size[d] - block.residue[d] + plan.spacing[d] - 1) / plan.spacing[d];
    count[d] = CountTaps(window, d, block.residue[d], window.kernel[d], &block.origin[d]);
  }
  block.taps = count[0] * count[1];

  HaloEntry* const table = reinterpret_cast<HaloEntry*>(shared + plan.table_at);
  int32_t* const slots = reinterpret_cast<int32_t*>(shared + plan.slots_at);
  for (int slot = threadIdx.x; slot < gemm.slots; slot += Shape::kThreads) {
    const Divisor::Result f = plan.by_kernel_width.Divide(slot);
    int offset[2], unused;
    if (!FindTap(window, 0, block.residue[0], f.quotient, &offset[0])) continue;
    if (!FindTap(window, 1, block.residue[1], f.remainder, &offset[1])) continue;
    const int tap = CountTaps(window, 0, block.residue[0], f.quotient, &unused) * count[1] +
                    CountTaps(window, 1, block.residue[1], f.remainder, &unused);
    const Divisor::Result across = plan.by_step.Divide(offset[1] - block.origin[1]);
    const int at = (offset[0] - block.origin[0]) * plan.line_pitch + across.remainder * plan.plane_pitch +
                   across.quotient * plan.pixel_pitch;
    slots[tap] = slot;
    for (int chunk = 0; chunk < plan.chunks; ++chunk) table[tap * plan.chunks + chunk] = {at + chunk * 16, -1};
  }
  if (threadIdx.x < Shape::kPerStep) {
    const int entries = block.taps * plan.chunks, padded = (entries + Shape::kPerStep - 1) / Shape::kPerStep * Shape::kPerStep;
    if (entries + static_cast<int>(threadIdx.x) < padded) table[entries + threadIdx.x] = {0, 0};
  }
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(shared) = make_uint4(0, 0, 0, 0);
  float* const bias = reinterpret_cast<float*>(shared + plan.bias_at);
  for (int column = threadIdx.x; column < Shape::kColumns; column += Shape::kThreads) {
    const bool exists = block.bias != nullptr && block.first_column + column < gemm.columns;
    bias[column] = exists ? block.bias[column] : 0.0f;
  }
  __syncthreads();
  return block;
}

// A tile's image, and its first pixel among those of the class.
struct HaloTile {
  int image, i, j;
};

KNNCONV_DEVICE HaloTile FindTile(const HaloPlan& plan, int tile) {
  const Divisor::Result image = plan.by_tiles.Divide(tile), across = plan.by_tiles_across.Divide(image.remainder);
  return {image.quotient, across.quotient * plan.tile[0], across.remainder * plan.tile[1]};
}

}  // namespace knnconv::gpu
