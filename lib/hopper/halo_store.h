// The end of a halo kernel's tile on Hopper: out = round(sums + bias).
//
// A warp has lines 2 * warp and the next of each of its team's blocks, a quad of lanes one pixel of each.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "hopper/halo_products.h"

namespace knnconv::hopper {

// By the copy engine, for columns as they are: through `results` in shared memory, the warp's own.
template <typename Shape, typename Out>
class BoxWriter {
  static constexpr int kPixels = 2 * kBlockSide;  // that a warp has of a block
  static constexpr int kLine = ResultColumns(sizeof(Out), Shape::kColumns), kLineBytes = kLine * sizeof(Out);
  static constexpr int kBoxBytes = kPixels * kLineBytes, kBoxes = Shape::kColumns / kLine;  // of a block

 public:
  KNNCONV_DEVICE static void Write(const HaloPlan& plan, const HaloBlock& block, const CUtensorMap& out,
                                   int tile_number, int thread, const float (&bias)[Shape::kColumns / 4],
                                   const HaloSums<Shape>& sums, char* results) {
    const int lane = thread % 32, warp = thread / 32;
    if (lane == 0) WaitForStoresToRead<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHaloBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int first = 0; first < Shape::kColumns; first += 32) {
          float value[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            value[e] = sums[i][first / 2 + e / 2 * 4 + half * 2 + e % 2] + bias[first / 4 + e];
          }
          Put(results + (i * kBoxes + first / kLine) * kBoxBytes, half, first % kLine, lane, value);
        }
      }
    }
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) {
      const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
#pragma unroll
      for (int i = 0; i < kHaloBlocks; ++i) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          StoreBox(&out, results + (i * kBoxes + box) * kBoxBytes, block.first_column + box * kLine,
                   tile.j + BlockAcross(plan, i) * kBlockSide, tile.i + BlockDown(plan, i) * kBlockSide + 2 * warp,
                   tile.image);
        }
      }
      CommitStores();
    }
    __syncwarp();
  }

 private:
  // Writes 32 columns of 8 pixels: columns 8 * j + 2 * (lane % 4) and the next in value[2 * j] and the next.
  KNNCONV_DEVICE static void Put(char* box, int half, int first, int lane, const float (&value)[8]) {
    struct alignas(2 * sizeof(Out)) Pair {
      Out element[2];
    };
    if constexpr (sizeof(Out) == 2) {
      uint32_t bits[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Pair pair{{gpu::FromFloat<Out>(value[2 * j]), gpu::FromFloat<Out>(value[2 * j + 1])}};
        bits[j] = *reinterpret_cast<const uint32_t*>(&pair);
      }
      StoreMatrices(At(box, half * kBlockSide + lane % 8, first / 8 + lane / 8), bits);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        char* const chunk = At(box, half * kBlockSide + lane / 4, 2 * j + lane % 4 / 2);
        *reinterpret_cast<Pair*>(chunk + lane % 2 * 8) = Pair{{value[2 * j], value[2 * j + 1]}};
      }
    }
  }

  // Where 16 bytes of a line lie, swizzled as the copy engine reads them.
  KNNCONV_DEVICE static char* At(char* box, int line, int chunk) {
    return box + line * kLineBytes + (chunk ^ (line * kLineBytes / 128 % (kLineBytes / 16))) * 16;
  }
};

template <typename Shape>
KNNCONV_DEVICE void StoreBoxes(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                               const CUtensorMap& out, int tile_number, int thread,
                               const float (&bias)[Shape::kColumns / 4], const HaloSums<Shape>& sums, char* results) {
  if (gemm.out_type == gpu::Element::kF32) {
    BoxWriter<Shape, float>::Write(plan, block, out, tile_number, thread, bias, sums, results);
  } else if (gemm.out_type == gpu::Element::kF16) {
    BoxWriter<Shape, gpu::Half>::Write(plan, block, out, tile_number, thread, bias, sums, results);
  } else {
    BoxWriter<Shape, gpu::BFloat>::Write(plan, block, out, tile_number, thread, bias, sums, results);
  }
}

// By threads, for dealt columns.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreDealtAs(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                                 int tile_number, int thread, const float* bias, const HaloSums<Shape>& sums) {
  using Deal = typename Shape::Deal;
  constexpr int kWidth = Deal::kWidth;
  const PixelClass& pixels = block.pixels;
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int lane = thread % 32, first_line = tile.i + thread / 32 * 2, first_pixel = tile.j + lane / 4;
  const int first_column = block.first_column + lane % 4 * kWidth;
  Out* const image = static_cast<Out*>(gemm.out) + int64_t{tile.image} * gemm.nodes * gemm.columns + first_column;
  constexpr int kGroupColumns = 8 * Deal::kGroup;
  float own_bias[Deal::kGroups][kWidth];  // read before the first store, which the compiler might take for one to it
#pragma unroll
  for (int group = 0; group < Deal::kGroups; ++group) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) own_bias[group][e] = bias[group * kGroupColumns + lane % 4 * kWidth + e];
  }
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int w = first_pixel + BlockAcross(plan, i) * kBlockSide;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = first_line + BlockDown(plan, i) * kBlockSide + half;
      if (h >= pixels.size[0] || w >= pixels.size[1]) continue;
      const int pixel = (h * plan.spacing[0] + pixels.residue[0]) * gemm.window.out_size[1] + w * plan.spacing[1] +
                        pixels.residue[1];
      Out* const out = image + pixel * gemm.columns;
#pragma unroll
      for (int group = 0; group < Deal::kGroups; ++group) {
        const int left = gemm.columns - first_column - group * kGroupColumns;
        float value[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          value[e] = sums[i][(group * Deal::kGroup + e / 2) * 4 + half * 2 + e % 2] + own_bias[group][e];
        }
        gpu::StoreColumns(out + group * kGroupColumns, value, left);
      }
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void StoreDealt(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, int tile_number,
                              int thread, const float* bias, const HaloSums<Shape>& sums) {
  if (gemm.out_type == gpu::Element::kF32) {
    StoreDealtAs<Shape, float>(gemm, plan, block, tile_number, thread, bias, sums);
  } else if (gemm.out_type == gpu::Element::kF16) {
    StoreDealtAs<Shape, gpu::Half>(gemm, plan, block, tile_number, thread, bias, sums);
  } else {
    StoreDealtAs<Shape, gpu::BFloat>(gemm, plan, block, tile_number, thread, bias, sums);
  }
}

}  // namespace knnconv::hopper
