// The products of a stretch of rows of g with all slots' weights (stem_dinput_kernel.h), into shared memory.
#pragma once

#include <cstdint>

#include "gpu/stem_dinput_products.h"
#include "hopper/stem_dinput_shape.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

// Copies a stretch's rows of g as wgmma reads them, in cores of 8 rows and 8 channels; zeros for rows and channels that
// do not exist.
template <typename Shape>
KNNCONV_DEVICE void CopyRows(const gpu::TapGemm& gemm, const StemDinputPlan& plan, const gpu::StemSample& sample,
                             int stretch, char* to) {
  constexpr int kLine = Shape::kLoads * 4;
  const int first = stretch * plan.stretch, rows = static_cast<int>(gemm.source_rows);
  const int count = gpu::StretchUnits(gemm, plan, stretch) * 8 * kLine;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
    const int row = i / kLine, part = i % kLine;
    const bool exists = first + row < rows && part * 8 < gemm.depth;
    gpu::CopyAsync16(to + part * plan.plane_bytes + row * 16,
                     sample.g + (static_cast<int64_t>(first + row) * gemm.depth + part * 8) * 2, exists);
  }
}

// A warp's 16 rows of a tile of weights, and the chunks of kStemRows rows of g that its warpgroup multiplies with them:
// every `step`th. Pairs are 8 slots' first two channels, singles 16 slots' last one.
template <bool kPairs>
struct StemTile {
  int slot, chunk, step;

  // Two warpgroups have a set of slots, all of them or those of half of the chunks: each has a tile of pairs, and both
  // share one of singles.
  KNNCONV_DEVICE explicit StemTile(const StemDinputPlan& plan) {
    const int number = static_cast<int>(Uniform(threadIdx.x / 32)), warp = number % 4, half = number / 4 % 2;
    const int team = number / 8, ways = 3 - plan.sets, way = plan.sets == 1 ? team : 0;
    const int first = plan.sets == 1 ? 0 : team * kStemSlots;
    slot = first + (kPairs ? half * 32 + warp * 8 : warp * 16);
    chunk = kPairs ? way : way + ways * half;
    step = kPairs ? ways : ways * 2;
  }
};

template <typename Shape>
using TileWeights = uint32_t[Shape::kSteps][4];

// Loads a tile's weights; any for slots that do not exist.
template <typename Shape, bool kPairs>
KNNCONV_DEVICE void LoadTile(const gpu::TapGemm& gemm, const StemTile<kPairs>& tile, const char* from,
                             TileWeights<Shape>& weights) {
  const int lane = threadIdx.x % 32, line = lane % 16;
  const int slot = tile.slot + (kPairs ? line % 8 : line), channel = kPairs ? line / 8 : 2;
  const char* const row = from + (min(slot, gemm.slots - 1) * kStemChannels + channel) * Shape::kRowPitch;
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    gpu::LoadMatrices<false>(weights[step], row + step * 32 + lane / 16 * 16);
  }
}

// Stores the products of the kStemRows rows from `first` on for the slots that exist; rows end with a unit of 8.
template <bool kPairs>
KNNCONV_DEVICE void StoreProducts(const gpu::TapGemm& gemm, const StemDinputPlan& plan, int first_slot, int first,
                                  int units, const float (&d)[kStemRows / 2], char* shared) {
  const int lane = threadIdx.x % 32, slot = first_slot + lane / 4;
  const int place = slot * plan.pitch + lane % 4 * 2 + first, left = units - first / 8;
  const bool exists = slot < gemm.slots, next_exists = slot + 8 < gemm.slots;
  float4* const pair = reinterpret_cast<float4*>(shared + place * 8);
  float2* const single = reinterpret_cast<float2*>(shared + plan.singles_at + place * 4);
#pragma unroll
  for (int j = 0; j < kStemRows / 8; ++j) {
    const float* const c = &d[j * 4];
    if constexpr (kPairs) {
      if (exists && j < left) pair[j * 4] = make_float4(c[0], c[2], c[1], c[3]);
    } else {
      if (exists && j < left) single[j * 4] = make_float2(c[0], c[1]);
      if (next_exists && j < left) single[plan.pitch * 4 + j * 4] = make_float2(c[2], c[3]);
    }
  }
}

// Multiplies the tile's chunks of a stretch's rows, which are staged. Other warpgroups multiply while one stores.
template <typename Shape, bool kPairs>
KNNCONV_DEVICE void MultiplyTile(const gpu::TapGemm& gemm, const StemDinputPlan& plan, const StemTile<kPairs>& tile,
                                 const TileWeights<Shape>& weights, int units, char* shared) {
  const uint64_t rows = DescribeCores(shared + plan.rows_at, plan.plane_bytes, 128);
  const uint32_t high = static_cast<uint32_t>(rows >> 32), low = Uniform(rows);
#pragma unroll 1
  for (int chunk = tile.chunk; chunk * (kStemRows / 8) < units; chunk += tile.step) {
    const int first = static_cast<int>(Uniform(chunk)) * kStemRows;  // as what is made of it
    float d[kStemRows / 2] = {};
    PinSums(d);
    FenceProducts();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      // Addresses count 16 bytes, a row of a core.
      const uint32_t at = low + first + step * (plan.plane_bytes * 2 >> 4);
      MultiplyAdd<typename Shape::T, kStemRows, Major::kK>(d, weights[step], Join(at, high));
    }
    CommitProducts();
    WaitForProducts<0>();
    PinSums(d);
    StoreProducts<kPairs>(gemm, plan, tile.slot, first, units, d, shared);
  }
}

}  // namespace knnconv::hopper
