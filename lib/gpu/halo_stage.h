// What a halo kernel copies to shared memory: its weights, once, and the halo of each tile.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/halo_block.h"

namespace knnconv::gpu {

template <typename T>
union HaloChunk {
  uint4 bits;
  T value[kHaloChunk];
  KNNCONV_DEVICE HaloChunk() : bits(make_uint4(0, 0, 0, 0)) {}
};

// `count` elements that lie `pitch` apart, and zeros.
template <typename T, typename From>
KNNCONV_DEVICE uint4 ReadElements(const From* from, int count, int pitch) {
  HaloChunk<T> chunk;
#pragma unroll
  for (int e = 0; e < kHaloChunk; ++e) {
    if (e < count) chunk.value[e] = FromFloat<T>(ToFloat(from[int64_t{e} * pitch]));
  }
  return chunk.bits;
}

// For i from the thread's number on, in steps of `threads`: store(i, load(i)), with several loads in flight.
template <typename Load, typename Store>
KNNCONV_DEVICE void CopyBatched(int count, int threads, const Load& load, const Store& store) {
  constexpr int kBatch = 6;
#pragma unroll 1
  for (int first = threadIdx.x; first < count; first += kBatch * threads) {
    uint4 value[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * threads < count) value[i] = load(first + i * threads);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * threads < count) store(first + i * threads, value[i]);
    }
  }
}

// Weights for products of chunks. Not transposed, rows are depths and hold the tile's columns as they are dealt to
// products; transposed, rows are columns, in the same order, and hold the depth.
template <typename Shape>
KNNCONV_DEVICE void StageChunkWeights(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared,
                                      int steps) {
  using T = typename Shape::T;
  using Deal = typename Shape::Deal;
  const int32_t* const slots = reinterpret_cast<const int32_t*>(shared + plan.slots_at);
  const T* const weight = reinterpret_cast<const T*>(block.weight);
  char* const to = shared + plan.weight_at;
  const auto read = [&](int64_t at, int count) {
    return plan.vector_weight ? *reinterpret_cast<const uint4*>(weight + at) : ReadElements<T>(weight + at, count, 1);
  };
  if constexpr (Shape::kTransposed) {
    // Unit i: 8 of the depth of one column. Neighbouring threads have neighbouring units.
    const auto load = [&](int i) {
      const int column = block.first_column + i % Shape::kColumns;
      const Divisor::Result tap = plan.by_chunks.Divide(i / Shape::kColumns);
      if (tap.quotient >= block.taps || column >= gemm.columns) return make_uint4(0, 0, 0, 0);
      const int channel = tap.remainder * kHaloChunk;
      return read((int64_t{slots[tap.quotient]} * gemm.columns + column) * gemm.depth + channel, gemm.depth - channel);
    };
    const auto store = [&](int i, const uint4& bits) {
      char* const line = to + Deal::Position(i % Shape::kColumns) * plan.weight_pitch;
      *reinterpret_cast<uint4*>(line + i / Shape::kColumns * 16) = bits;
    };
    CopyBatched(Shape::kColumns * steps * 2, Shape::kThreads, load, store);
  } else {
    constexpr int kLine = Shape::kColumns / kHaloChunk;
    const auto load = [&](int i) {
      const int column = block.first_column + i % kLine * kHaloChunk;
      const Divisor::Result tap = plan.by_padded_depth.Divide(i / kLine);
      if (tap.quotient >= block.taps || tap.remainder >= gemm.depth || column >= gemm.columns) {
        return make_uint4(0, 0, 0, 0);
      }
      return read((int64_t{slots[tap.quotient]} * gemm.depth + tap.remainder) * gemm.columns + column,
                  gemm.columns - column);
    };
    const auto store = [&](int i, const uint4& bits) {
      char* const line = to + i / kLine * Shape::kWeightPitch;
      const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int position = Deal::Position(i % kLine * kHaloChunk + pair * 2);
        *reinterpret_cast<uint32_t*>(line + position * 2) = pairs[pair];
      }
    };
    CopyBatched(steps * 16 * kLine, Shape::kThreads, load, store);
  }
}

// Weights for products of quads, as lanes hold them: of each step and product, 8 bytes a lane.
template <typename Shape>
KNNCONV_DEVICE void StageQuadWeights(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* shared,
                                     int steps) {
  using T = typename Shape::T;
  const int32_t* const slots = reinterpret_cast<const int32_t*>(shared + plan.slots_at);
  const T* const weight = reinterpret_cast<const T*>(block.weight);
  uint2* const to = reinterpret_cast<uint2*>(shared + plan.weight_at);
  const int across = Shape::kTransposed ? gemm.depth : 1, down = Shape::kTransposed ? 1 : gemm.columns;
  // Unit i: a column's channels of one tap. Neighbouring threads have neighbouring columns.
  const auto load = [&](int i) {
    const int tap = i / Shape::kColumns, column = block.first_column + i % Shape::kColumns;
    if (tap >= block.taps || column >= gemm.columns) return make_uint4(0, 0, 0, 0);
    const int64_t at = int64_t{slots[tap]} * gemm.depth * gemm.columns + int64_t{column} * across;
    return ReadElements<T>(weight + at, min(gemm.depth, kMostQuadChannels), down);
  };
  const auto store = [&](int i, const uint4& bits) {
    const int tap = i / Shape::kColumns, position = Shape::Deal::Position(i % Shape::kColumns);
    to[(tap / 4 * Shape::kTiles + position / 8) * kWarpSize + position % 8 * 4 + tap % 4] = make_uint2(bits.x, bits.y);
  };
  CopyBatched(steps * 4 * Shape::kColumns, Shape::kThreads, load, store);
}

// Where a tile's halo lies in its image.
struct HaloPlace {
  const char* image;
  int line, column;  // of the halo's first pixel; may lie outside
};

KNNCONV_DEVICE HaloPlace PlaceOfHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps,
                                     const char* source, int tile_number) {
  const HaloTile tile = FindTile(geometry, tile_number);
  const int64_t image = int64_t{tile.image} * gemm.source_rows * gemm.depth * ElementBytes(gemm.source_type);
  return {source + image, tile.i * geometry.step[0] + taps.origin[0], tile.j * geometry.step[1] + taps.origin[1]};
}

KNNCONV_DEVICE bool IsInside(int position, int size) { return static_cast<uint32_t>(position) < static_cast<uint32_t>(size); }

// Bytes from a line's first pixel in the halo to where pixel number `pixel` lies.
KNNCONV_DEVICE int PlaceInLine(const HaloGeometry& geometry, int pixel) {
  const Divisor::Result across = geometry.by_step.Divide(pixel);
  return across.remainder * geometry.plane_pitch + across.quotient * geometry.pixel_pitch;
}

// Copies a halo to its place; what lies outside the image is zero. A warp has every kWarps-th line.
template <int kWarps>
KNNCONV_DEVICE void CopyHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloPlace& place, char* to) {
  const WindowTaps& window = gemm.window;
  const int first = threadIdx.x / kWarpSize, units = geometry.halo[1] * geometry.chunks;
  const int64_t line_bytes = int64_t{window.source_size[1]} * gemm.depth * 2;
  for (int unit = threadIdx.x % kWarpSize; unit < units; unit += kWarpSize) {
    const Divisor::Result pixel = geometry.by_chunks.Divide(unit);
    const int column = place.column + pixel.quotient;
    const bool exists = IsInside(column, window.source_size[1]);
    int h = place.line + first;
    char* at = to + first * geometry.line_pitch + PlaceInLine(geometry, pixel.quotient) + pixel.remainder * 16;
    const char* from = place.image + h * line_bytes + (int64_t{column} * gemm.depth + pixel.remainder * kHaloChunk) * 2;
#pragma unroll 2
    for (int line = first; line < geometry.halo[0]; line += kWarps) {
      CopyAsync16(at, from, exists && IsInside(h, window.source_size[0]));
      h += kWarps;
      at += kWarps * geometry.line_pitch;
      from += kWarps * line_bytes;
    }
  }
}

// Copies a halo's lines as they lie in memory, from the 16 bytes on in which a line starts.
template <int kWarps>
KNNCONV_DEVICE void CopyRawHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloPlace& place, char* to) {
  const WindowTaps& window = gemm.window;
  const int pixel_bytes = gemm.depth * ElementBytes(gemm.source_type);
  const int begin = max(0, place.column), end = min(window.source_size[1], place.column + geometry.halo[1]);
  for (int line = threadIdx.x / kWarpSize; line < geometry.halo[0]; line += kWarps) {
    const int h = place.line + line;
    if (!IsInside(h, window.source_size[0]) || begin >= end) continue;
    const char* const row = place.image + int64_t{h} * window.source_size[1] * pixel_bytes;
    const char* const from = row + int64_t{place.column} * pixel_bytes;
    const char* const first = row + int64_t{begin} * pixel_bytes;
    const char* const last = row + int64_t{end} * pixel_bytes;
    const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
    for (int at = threadIdx.x % kWarpSize * 16; at < geometry.raw_pitch; at += kWarpSize * 16) {
      const char* const unit = from - shift + at;
      char* const into = to + line * geometry.raw_pitch + at;
      if (unit + 16 <= first || unit >= last) continue;
      if (geometry.aligned_source) {  // then no unit starts before the source
        CopyAsyncPart(into, unit, static_cast<int>(min(int64_t{16}, static_cast<int64_t>(last - unit))));
      } else {
        for (int i = 0; i < 16; i += 2) {
          if (unit + i < first || unit + i >= last) continue;
          *reinterpret_cast<uint16_t*>(into + i) = *reinterpret_cast<const uint16_t*>(unit + i);
        }
      }
    }
  }
}

template <typename T, bool kQuads, int kWarps, typename From>
KNNCONV_DEVICE void PlaceRawHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloPlace& place,
                                 const char* raw, char* to) {
  const WindowTaps& window = gemm.window;
  const int pixel_bytes = gemm.depth * static_cast<int>(sizeof(From)), units = geometry.halo[1] * geometry.chunks;
  const int first = threadIdx.x / kWarpSize;
  const int64_t line_bytes = int64_t{window.source_size[1]} * pixel_bytes;
  const char* const corner = place.image + place.line * line_bytes + int64_t{place.column} * pixel_bytes;
  const uint32_t corner_bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(corner));
  const uint32_t line_bits = static_cast<uint32_t>(line_bytes);
  for (int unit = threadIdx.x % kWarpSize; unit < units; unit += kWarpSize) {
    const Divisor::Result pixel = geometry.by_chunks.Divide(unit);
    const bool exists = IsInside(place.column + pixel.quotient, window.source_size[1]);
    const int channel = pixel.remainder * kHaloChunk, most = kQuads ? kMostQuadChannels : kHaloChunk;
    const int in_line = PlaceInLine(geometry, pixel.quotient) + pixel.remainder * 16;
    const int in_raw = pixel.quotient * pixel_bytes + channel * static_cast<int>(sizeof(From));
#pragma unroll 4
    for (int line = first; line < geometry.halo[0]; line += kWarps) {
      const bool inside = exists && IsInside(place.line + line, window.source_size[0]);
      const int shift = static_cast<int>((corner_bits + line * line_bits) % 16);
      const From* const from = reinterpret_cast<const From*>(raw + line * geometry.raw_pitch + shift + in_raw);
      const uint4 bits = ReadElements<T>(from, inside ? min(gemm.depth - channel, most) : 0, 1);
      char* const at = to + line * geometry.line_pitch + in_line;
      if constexpr (kQuads) {
        *reinterpret_cast<uint2*>(at) = make_uint2(bits.x, bits.y);
      } else {
        *reinterpret_cast<uint4*>(at) = bits;
      }
    }
  }
}

// Starts to copy the halo of a tile: to its place, or raw. `source` is the group's.
template <int kWarps>
KNNCONV_DEVICE void StageHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps, const char* source,
                              int tile, char* to) {
  const HaloPlace place = PlaceOfHalo(gemm, geometry, taps, source, tile);
  if (geometry.raw_bytes == 0) {
    CopyHalo<kWarps>(gemm, geometry, place, to);
  } else {
    CopyRawHalo<kWarps>(gemm, geometry, place, to);
  }
}

// Puts a raw halo that has arrived in place, as elements of type T.
template <typename T, bool kQuads, int kWarps>
KNNCONV_DEVICE void UnpackHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps, const char* source,
                               int tile, const char* raw, char* to) {
  const HaloPlace place = PlaceOfHalo(gemm, geometry, taps, source, tile);
  if (gemm.source_type == Element::kF32) {
    PlaceRawHalo<T, kQuads, kWarps, float>(gemm, geometry, place, raw, to);
  } else {
    PlaceRawHalo<T, kQuads, kWarps, T>(gemm, geometry, place, raw, to);
  }
}

}  // namespace knnconv::gpu
