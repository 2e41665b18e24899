// What a halo kernel copies to shared memory: its weights, once, and the halo of each tile.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/halo_block.h"

namespace knnconv::gpu {

template <typename T, int kCount>
union HaloChunk {
  uint4 bits;
  T value[kCount];
  KNNCONV_DEVICE HaloChunk() : bits(make_uint4(0, 0, 0, 0)) {}
};

// `count` elements from `index` on, which lie `pitch` apart, and zeros.
template <typename T>
KNNCONV_DEVICE uint4 ReadElements(const void* data, Element type, int64_t index, int count, int pitch) {
  HaloChunk<T, kHaloChunk> chunk;
#pragma unroll
  for (int e = 0; e < kHaloChunk; ++e) {
    if (e < count) chunk.value[e] = FromFloat<T>(LoadElement(data, type, index + int64_t{e} * pitch));
  }
  return chunk.bits;
}

// Weights for products of chunks. Not transposed, rows are depths and hold the tile's columns as they are dealt to
// products; transposed, rows are columns, in the same order, and hold the depth.
template <typename Shape>
KNNCONV_DEVICE void StageChunkWeights(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared,
                                      int steps) {
  using T = typename Shape::T;
  using Deal = typename Shape::Deal;
  constexpr Element kType = ElementOf<T>::value;
  const int32_t* const slots = reinterpret_cast<const int32_t*>(shared + plan.slots_at);
  const T* const weight = reinterpret_cast<const T*>(block.weight);
  char* const to = shared + plan.weight_at;
  constexpr int kLine = Shape::kColumns / kHaloChunk;  // chunks of a row, or columns of a chunk of depth
  const int count = Shape::kTransposed ? Shape::kColumns * steps * 2 : steps * 16 * kLine;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
    if constexpr (Shape::kTransposed) {
      const int column = i % Shape::kColumns, unit = i / Shape::kColumns;  // of 8 in the depth
      const Divisor::Result tap = plan.by_chunks.Divide(unit);
      const int channel = tap.remainder * kHaloChunk, from_column = block.first_column + column;
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (tap.quotient < block.taps && from_column < gemm.columns) {
        const int64_t at = (int64_t{slots[tap.quotient]} * gemm.columns + from_column) * gemm.depth + channel;
        bits = plan.vector_weight ? *reinterpret_cast<const uint4*>(weight + at)
                                  : ReadElements<T>(weight, kType, at, gemm.depth - channel, 1);
      }
      *reinterpret_cast<uint4*>(to + Deal::Position(column) * plan.weight_pitch + unit * 16) = bits;
    } else {
      const int row = i / kLine, column = i % kLine * kHaloChunk, left = gemm.columns - block.first_column - column;
      const Divisor::Result tap = plan.by_padded_depth.Divide(row);
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (tap.quotient < block.taps && tap.remainder < gemm.depth && left > 0) {
        const int64_t at = (int64_t{slots[tap.quotient]} * gemm.depth + tap.remainder) * gemm.columns +
                           block.first_column + column;
        bits = plan.vector_weight ? *reinterpret_cast<const uint4*>(weight + at)
                                  : ReadElements<T>(weight, kType, at, left, 1);
      }
      char* const line = to + row * Shape::kWeightPitch;
      const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        *reinterpret_cast<uint32_t*>(line + Deal::Position(column + pair * 2) * 2) = pairs[pair];
      }
    }
  }
}

// Weights for products of quads, as lanes hold them: of each step and product, 8 bytes a lane.
template <typename Shape>
KNNCONV_DEVICE void StageQuadWeights(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared,
                                     int steps) {
  using T = typename Shape::T;
  const int32_t* const slots = reinterpret_cast<const int32_t*>(shared + plan.slots_at);
  uint2* const to = reinterpret_cast<uint2*>(shared + plan.weight_at);
  const int across = Shape::kTransposed ? gemm.depth : 1, down = Shape::kTransposed ? 1 : gemm.columns;
#pragma unroll 2
  for (int i = threadIdx.x; i < steps * 4 * Shape::kColumns; i += Shape::kThreads) {
    // Neighbouring threads read neighbouring columns.
    const int tap = i / Shape::kColumns, column = i % Shape::kColumns, from_column = block.first_column + column;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (tap < block.taps && from_column < gemm.columns) {
      const int64_t at = int64_t{slots[tap]} * gemm.depth * gemm.columns + int64_t{from_column} * across;
      bits = ReadElements<T>(block.weight, ElementOf<T>::value, at, gemm.depth, down);
    }
    const int position = Shape::Deal::Position(column);
    to[(tap / 4 * Shape::kTiles + position / 8) * kWarpSize + position % 8 * 4 + tap % 4] = make_uint2(bits.x, bits.y);
  }
}

// The halo of a tile; what lies outside the image is zero. `source` is the group's.
template <typename T, bool kQuads>
KNNCONV_DEVICE void StageHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps, const char* source,
                              int tile_number, int threads, char* to) {
  const WindowTaps& window = gemm.window;
  const HaloTile tile = FindTile(geometry, tile_number);
  const int first_line = tile.i * geometry.step[0] + taps.origin[0], first = tile.j * geometry.step[1] + taps.origin[1];
  const int bytes = ElementBytes(gemm.source_type);
  const char* const image = source + int64_t{tile.image} * gemm.source_rows * gemm.depth * bytes;
  const int units = geometry.halo[0] * geometry.halo[1] * geometry.chunks;
#pragma unroll 4
  for (int i = threadIdx.x; i < units; i += threads) {
    const Divisor::Result line = geometry.by_halo_line.Divide(i), pixel = geometry.by_chunks.Divide(line.remainder);
    const Divisor::Result across = geometry.by_step.Divide(pixel.quotient);
    const int h = first_line + line.quotient, w = first + pixel.quotient, channel = pixel.remainder * kHaloChunk;
    const bool exists = static_cast<uint32_t>(h) < static_cast<uint32_t>(window.source_size[0]) &&
                        static_cast<uint32_t>(w) < static_cast<uint32_t>(window.source_size[1]);
    char* const at = to + line.quotient * geometry.line_pitch + across.remainder * geometry.plane_pitch +
                     across.quotient * geometry.pixel_pitch;
    const int64_t element = exists ? int64_t{h * window.source_size[1] + w} * gemm.depth + channel : 0;
    const int count = exists ? gemm.depth - channel : 0;
    if constexpr (kQuads) {
      const uint4 bits = ReadElements<T>(image, gemm.source_type, element, count, 1);
      *reinterpret_cast<uint2*>(at) = make_uint2(bits.x, bits.y);
    } else if (geometry.vector_source) {
      CopyAsync16(at + channel * 2, image + element * 2, exists);
    } else {
      *reinterpret_cast<uint4*>(at + channel * 2) = ReadElements<T>(image, gemm.source_type, element, count, 1);
    }
  }
}

}  // namespace knnconv::gpu
