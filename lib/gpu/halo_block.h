// A halo kernel's thread block: its share of the result, and the table of its taps in shared memory.
#pragma once

#include <cstdint>

#include "gpu/halo_plan.h"
#include "gpu/matrix_ops.h"

namespace knnconv::gpu {

// How columns of a tile are dealt to products of 8 columns, so that a lane ends with neighbours: of each group of up to
// 4 products (32 columns), lane t of a quad holds columns kWidth * t and the kWidth - 1 after it. kTiles: products of a
// tile.
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

// Stores neighbouring columns, as much as 16 bytes at a time.
template <typename T, int kWidth>
KNNCONV_DEVICE void StoreColumns(T* out, const float (&value)[kWidth], int count) {
  constexpr int kBytes = kWidth * sizeof(T), kUnit = kBytes < 16 ? kBytes : 16, kPart = kUnit / sizeof(T);
  struct alignas(kUnit) Part {
    T element[kPart];
  };
#pragma unroll
  for (int first = 0; first < kWidth; first += kPart) {
    Part part;
#pragma unroll
    for (int e = 0; e < kPart; ++e) part.element[e] = FromFloat<T>(value[first + e]);
    if (first < count) *reinterpret_cast<Part*>(out + first) = part;
  }
}

// T: the type of products. kQuads: source pixels of up to 4 channels, else of 16-byte chunks. kHigh: rows of 16 pixels
// that a warp has.
template <typename T_, bool kQuads_, bool kTransposed_, int kTiles_>
struct HaloShape {
  using T = T_;
  using Deal = ColumnDeal<kTiles_>;
  static constexpr bool kQuads = kQuads_, kTransposed = kTransposed_;
  static constexpr HaloFixed kFixed = HaloFixedOf(kQuads, kTiles_);
  static constexpr int kWarps = kFixed.warps, kThreads = kWarps * kWarpSize;
  static constexpr int kTiles = kTiles_, kHigh = kFixed.rows / kWarps / 16, kBlocks = kFixed.blocks;
  static constexpr int kRows = kFixed.rows, kColumns = kFixed.columns;
  static constexpr int kPerStep = kQuads ? 4 : 2;  // table entries of a step of the main loop, 16 deep
  // Bytes between rows of weights, where rows are depths. 8 rows' 16 bytes lie in different banks.
  static constexpr int kWeightPitch = HaloWeightPitch(kColumns);
};

// Where a step's operands lie: `at`, in bytes, from a pixel's own place; `mask` is all ones, or 0 where there is no tap
// and `at` is the place of zeros.
struct alignas(8) HaloEntry {
  int32_t at, mask;
};

// The taps of a class of pixels. The same in all threads.
struct HaloTaps {
  int residue[2];
  int origin[2];  // of the halo, from pixel (0, 0) of the class
  int size[2];    // pixels of the class
  int count[2];   // taps of each dimension
  int taps;
};

// A forward or dinput block's place. The same in all threads.
struct HaloBlock : HaloTaps {
  const char* source;
  const char* weight;  // of the group, from its first slot on
  char* out;
  uint32_t group;
  int first_column;
  int part;            // of the kind's blocks
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

// Finds a class's taps.
KNNCONV_DEVICE HaloTaps FindTaps(const TapGemm& gemm, const HaloGeometry& geometry, uint32_t pixel_class) {
  const WindowTaps& window = gemm.window;
  HaloTaps taps;
  const uint32_t classes_across = static_cast<uint32_t>(min(geometry.spacing[1], window.out_size[1]));
  taps.residue[0] = static_cast<int>(pixel_class / classes_across);
  taps.residue[1] = static_cast<int>(pixel_class % classes_across);
  for (int d = 0; d < 2; ++d) {
    taps.size[d] = (window.out_size[d] - taps.residue[d] + geometry.spacing[d] - 1) / geometry.spacing[d];
    taps.count[d] = CountTaps(window, d, taps.residue[d], window.kernel[d], &taps.origin[d]);
  }
  taps.taps = taps.count[0] * taps.count[1];
  return taps;
}

// Calls visit(tap, slot, at) for the thread's share of a class's taps: `at` is where the tap reads, in bytes from a
// pixel's own place.
template <typename Visit>
KNNCONV_DEVICE void VisitTaps(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps, int threads,
                              const Visit& visit) {
  const WindowTaps& window = gemm.window;
  for (int slot = threadIdx.x; slot < gemm.slots; slot += threads) {
    const Divisor::Result f = geometry.by_kernel_width.Divide(slot);
    int offset[2], unused;
    if (!FindTap(window, 0, taps.residue[0], f.quotient, &offset[0])) continue;
    if (!FindTap(window, 1, taps.residue[1], f.remainder, &offset[1])) continue;
    const int tap = CountTaps(window, 0, taps.residue[0], f.quotient, &unused) * taps.count[1] +
                    CountTaps(window, 1, taps.residue[1], f.remainder, &unused);
    const Divisor::Result across = geometry.by_step.Divide(offset[1] - taps.origin[1]);
    const int at = (offset[0] - taps.origin[0]) * geometry.line_pitch + across.remainder * geometry.plane_pitch +
                   across.quotient * geometry.pixel_pitch;
    visit(tap, slot, at);
  }
}

// Writes the taps' entries to `table`, filled up to a multiple of `per_step`, and their slots to `slots`.
KNNCONV_DEVICE void FillTable(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps, int threads,
                              int per_step, HaloEntry* table, int32_t* slots) {
  VisitTaps(gemm, geometry, taps, threads, [&](int tap, int slot, int at) {
    slots[tap] = slot;
    for (int chunk = 0; chunk < geometry.chunks; ++chunk) {
      table[tap * geometry.chunks + chunk] = {at + chunk * geometry.chunk_pitch, -1};
    }
  });
  const int entries = taps.taps * geometry.chunks, filler = entries + static_cast<int>(threadIdx.x);
  if (filler < (entries + per_step - 1) / per_step * per_step) table[filler] = {0, 0};
}

template <typename Shape>
KNNCONV_DEVICE HaloBlock OpenHalo(const TapGemm& gemm, const HaloPlan& plan) {
  HaloBlock block;
  uint32_t kind = blockIdx.x / plan.blocks_of_kind;
  block.part = static_cast<int>(blockIdx.x - kind * plan.blocks_of_kind);
  block.first_column = static_cast<int>(kind % plan.column_tiles) * Shape::kColumns;
  kind /= plan.column_tiles;
  block.group = kind / plan.classes;
  static_cast<HaloTaps&>(block) = FindTaps(gemm, plan, kind % plan.classes);

  const GroupShape& shape = gemm.groups;
  const int64_t source_offset = gemm.source_groups.Offset(shape, block.group);
  block.source = static_cast<const char*>(gemm.source) + source_offset * ElementBytes(gemm.source_type);
  block.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, block.group) * 2;
  const int64_t out_offset = block.group * gemm.batch * gemm.nodes * gemm.columns;
  block.out = static_cast<char*>(gemm.out) + out_offset * ElementBytes(gemm.out_type);
  return block;
}

// What products and results look up in shared memory.
template <typename Shape>
KNNCONV_DEVICE void FillTables(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared) {
  FillTable(gemm, plan, block, Shape::kThreads, Shape::kPerStep, reinterpret_cast<HaloEntry*>(shared + plan.table_at),
            reinterpret_cast<int32_t*>(shared + plan.slots_at));
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(shared) = make_uint4(0, 0, 0, 0);
  const float* from = gemm.bias == nullptr ? nullptr : gemm.bias + gemm.bias_groups.Offset(gemm.groups, block.group);
  float* const bias = reinterpret_cast<float*>(shared + plan.bias_at);
  for (int i = threadIdx.x; i < Shape::kColumns; i += Shape::kThreads) {
    const int column = block.first_column + i;
    bias[i] = from != nullptr && column < gemm.columns ? from[column] : 0.0f;
  }
}

// A tile's image, and its first pixel among those of the class.
struct HaloTile {
  int image, i, j;
};

KNNCONV_DEVICE HaloTile FindTile(const HaloGeometry& geometry, int tile) {
  const Divisor::Result image = geometry.by_tiles.Divide(tile);
  const Divisor::Result across = geometry.by_tiles_across.Divide(image.remainder);
  return {image.quotient, across.quotient * geometry.tile[0], across.remainder * geometry.tile[1]};
}

}  // namespace knnconv::gpu
