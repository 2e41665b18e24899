// What a halo kernel copies to shared memory: its weights, once, and the halo of each tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/async_copy.h"
#include "gpu/halo_block.h"

namespace knnconv::gpu {

template <typename T>
union HaloChunk {
  uint4 bits;
  T value[kHaloChunk];
  KNNCONV_DEVICE HaloChunk() : bits(make_uint4(0, 0, 0, 0)) {}
};

// `count` elements that lie `pitch` apart, kMost at most, and zeros.
template <typename T, int kMost = kHaloChunk, typename From>
KNNCONV_DEVICE uint4 ReadElements(const From* from, int count, int pitch) {
  HaloChunk<T> chunk;
#pragma unroll
  for (int e = 0; e < kMost; ++e) {
    if (e >= count) continue;
    if constexpr (std::is_same_v<T, From>) {
      chunk.value[e] = from[int64_t{e} * pitch];
    } else {
      chunk.value[e] = FromFloat<T>(ToFloat(from[int64_t{e} * pitch]));
    }
  }
  return chunk.bits;
}

// For i from the thread's number on, in steps of `threads`: store(i, load(i)), with kBatch loads in flight.
template <int kBatch, typename Load, typename Store>
KNNCONV_DEVICE void CopyBatched(int count, int threads, const Load& load, const Store& store) {
#pragma unroll 1
  for (int first = threadIdx.x; first < count; first += kBatch * threads) {
    uint4 value[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) value[i] = load(first + i * threads < count ? first + i * threads : first);
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
  const auto copy = [&](int count, const auto& find, const auto& store) {
    // find(i, &at): how many elements from `at` on exist.
    if (plan.vector_weight) {
      const auto load = [&](int i) {
        int64_t at;
        return find(i, &at) > 0 ? ReadOnly(reinterpret_cast<const uint4*>(weight + at)) : make_uint4(0, 0, 0, 0);
      };
      CopyBatched<6>(count, Shape::kThreads, load, store);
    } else {
      const auto load = [&](int i) {
        int64_t at;
        const int elements = find(i, &at);
        return ReadElements<T>(weight + at, elements, 1);
      };
      CopyBatched<1>(count, Shape::kThreads, load, store);
    }
  };
  if constexpr (Shape::kTransposed) {
    // Unit i: 8 of the depth of one column. Neighbouring threads have neighbouring units.
    const auto find = [&](int i, int64_t* at) {
      const int column = block.first_column + i % Shape::kColumns;
      const Divisor::Result tap = plan.by_chunks.Divide(i / Shape::kColumns);
      const bool exists = tap.quotient < block.taps && column < gemm.columns;
      const int channel = tap.remainder * kHaloChunk;
      *at = exists ? (int64_t{slots[tap.quotient]} * gemm.columns + column) * gemm.depth + channel : 0;
      return exists ? gemm.depth - channel : 0;
    };
    const auto store = [&](int i, const uint4& bits) {
      char* const line = to + Deal::Position(i % Shape::kColumns) * plan.weight_pitch;
      *reinterpret_cast<uint4*>(line + i / Shape::kColumns * 16) = bits;
    };
    copy(Shape::kColumns * steps * 2, find, store);
  } else {
    constexpr int kLine = Shape::kColumns / kHaloChunk;
    const auto find = [&](int i, int64_t* at) {
      const int column = block.first_column + i % kLine * kHaloChunk;
      const Divisor::Result tap = plan.by_padded_depth.Divide(i / kLine);
      const bool exists = tap.quotient < block.taps && tap.remainder < gemm.depth;
      *at = exists ? (int64_t{slots[tap.quotient]} * gemm.depth + tap.remainder) * gemm.columns + column : 0;
      return exists ? gemm.columns - column : 0;
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
    copy(steps * 16 * kLine, find, store);
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
    const bool exists = tap < block.taps && column < gemm.columns;
    const int64_t at = exists ? int64_t{slots[tap]} * gemm.depth * gemm.columns + int64_t{column} * across : 0;
    return ReadElements<T, kMostQuadChannels>(weight + at, exists ? gemm.depth : 0, down);
  };
  const auto store = [&](int i, const uint4& bits) {
    const int tap = i / Shape::kColumns, position = Shape::Deal::Position(i % Shape::kColumns);
    to[(tap / 4 * Shape::kTiles + position / 8) * kWarpSize + position % 8 * 4 + tap % 4] = make_uint2(bits.x, bits.y);
  };
  CopyBatched<4>(steps * 4 * Shape::kColumns, Shape::kThreads, load, store);
}

// Where a tile's halo lies in its image.
struct HaloPlace {
  const char* image;
  const char* end;   // of the last image
  int line, column;  // of the halo's first pixel; may lie outside
};

KNNCONV_DEVICE HaloPlace PlaceOfHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps,
                                     const char* source, int tile_number) {
  const HaloTile tile = FindTile(geometry, tile_number);
  const int64_t bytes = gemm.source_rows * gemm.depth * ElementBytes(gemm.source_type);  // of an image
  return {source + tile.image * bytes, source + gemm.batch * bytes, tile.i * geometry.step[0] + taps.origin[0],
          tile.j * geometry.step[1] + taps.origin[1]};
}

KNNCONV_DEVICE bool IsInside(int position, int size) {
  return static_cast<uint32_t>(position) < static_cast<uint32_t>(size);
}

// Bytes from a line's first pixel in the halo to where pixel number `pixel` lies.
KNNCONV_DEVICE int PlaceInLine(const HaloGeometry& geometry, int pixel) {
  const Divisor::Result across = geometry.by_step.Divide(pixel);
  return across.remainder * geometry.plane_pitch + across.quotient * geometry.pixel_pitch;
}

// The share of thread number `thread` in copying a halo to its place; what lies outside the image is zero.
KNNCONV_DEVICE void CopyHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloPlace& place, int thread,
                             char* to) {
  const WindowTaps& window = gemm.window;
  const HaloShare& share = geometry.share;
  const Divisor::Result first = share.by_width.Divide(thread);
  if (first.quotient >= share.rows) return;
  const int units = geometry.halo[1] * geometry.chunks;
  const int64_t line_bytes = int64_t{window.source_size[1]} * gemm.depth * 2;
#pragma unroll 1
  for (int unit = first.remainder; unit < units; unit += share.width) {
    const Divisor::Result pixel = geometry.by_chunks.Divide(unit);
    const int column = place.column + pixel.quotient;
    const bool exists = IsInside(column, window.source_size[1]);
    int h = place.line + first.quotient;
    char* at = to + first.quotient * geometry.line_pitch + PlaceInLine(geometry, pixel.quotient) +
               pixel.remainder * geometry.chunk_pitch;
    const char* from = place.image + h * line_bytes + (int64_t{column} * gemm.depth + pixel.remainder * kHaloChunk) * 2;
#pragma unroll 2
    for (int line = first.quotient; line < geometry.halo[0]; line += share.rows) {
      CopyAsync16(at, from, exists && IsInside(h, window.source_size[0]));
      h += share.rows;
      at += share.rows * geometry.line_pitch;
      from += share.rows * line_bytes;
    }
  }
}

// The same in copying a halo's lines as they lie in memory, from the 16 bytes on in which a line starts.
KNNCONV_DEVICE void CopyRawHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloPlace& place, int thread,
                                char* to) {
  const WindowTaps& window = gemm.window;
  const HaloShare& share = geometry.raw_share;
  const Divisor::Result part = share.by_width.Divide(thread);
  if (part.quotient >= share.rows) return;
  const int pixel_bytes = gemm.depth * ElementBytes(gemm.source_type);
  const int64_t line_bytes = int64_t{window.source_size[1]} * pixel_bytes;
  // Of a line's bytes in the halo, those that exist.
  const int first = max(0, -place.column) * pixel_bytes;
  const int last = min(window.source_size[1] - place.column, geometry.halo[1]) * pixel_bytes;
  const char* const corner = place.image + place.line * line_bytes + int64_t{place.column} * pixel_bytes;
#pragma unroll 1
  for (int line = part.quotient; line < geometry.halo[0]; line += share.rows) {
    if (!IsInside(place.line + line, window.source_size[0])) continue;
    const char* const from = corner + line * line_bytes;
    const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
#pragma unroll 1
    for (int at = part.remainder * 16; at < geometry.raw_pitch; at += share.width * 16) {
      const int begin = at - shift;  // in the line
      if (begin + 16 <= first || begin >= last) continue;
      char* const into = to + line * geometry.raw_pitch + at;
      // An aligned unit may hold neighbours of the halo's bytes, which nobody looks at, but none before the source.
      if (geometry.aligned_source && from + begin + 16 <= place.end) {
        CopyAsync16(into, from + begin, true);
      } else {
#pragma unroll 1
        for (int i = max(0, first - begin); i < min(16, last - begin); i += 2) {
          *reinterpret_cast<uint16_t*>(into + i) = *reinterpret_cast<const uint16_t*>(from + begin + i);
        }
      }
    }
  }
}

// Puts a raw halo in place, as elements of type T.
template <typename T, bool kQuads, typename From>
KNNCONV_DEVICE void PlaceRawHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloPlace& place,
                                 const char* raw, char* to) {
  constexpr int kMost = kQuads ? kMostQuadChannels : kHaloChunk;
  const WindowTaps& window = gemm.window;
  const HaloShare& share = geometry.share;
  const Divisor::Result first = share.by_width.Divide(threadIdx.x);
  if (first.quotient >= share.rows) return;
  const int pixel_bytes = gemm.depth * static_cast<int>(sizeof(From)), units = geometry.halo[1] * geometry.chunks;
  const int64_t line_bytes = int64_t{window.source_size[1]} * pixel_bytes;
  // Only where in 16 bytes a line starts is of interest.
  const uint32_t line_bits = static_cast<uint32_t>(line_bytes);
  const uint32_t corner_bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place.image)) +
                               place.line * line_bits + place.column * static_cast<uint32_t>(pixel_bytes);
#pragma unroll 1
  for (int unit = first.remainder; unit < units; unit += share.width) {
    const Divisor::Result pixel = geometry.by_chunks.Divide(unit);
    const bool exists = IsInside(place.column + pixel.quotient, window.source_size[1]);
    const int channel = pixel.remainder * kHaloChunk, count = exists ? gemm.depth - channel : 0;
    char* const into = to + PlaceInLine(geometry, pixel.quotient) + pixel.remainder * 16;
    const char* const from = raw + pixel.quotient * pixel_bytes + channel * static_cast<int>(sizeof(From));
#pragma unroll kQuads ? 4 : 2
    for (int line = first.quotient; line < geometry.halo[0]; line += share.rows) {
      const bool inside = IsInside(place.line + line, window.source_size[0]);
      const int shift = static_cast<int>((corner_bits + line * line_bits) % 16);
      const From* const elements = reinterpret_cast<const From*>(from + line * geometry.raw_pitch + shift);
      const uint4 bits = ReadElements<T, kMost>(elements, inside ? count : 0, 1);
      char* const at = into + line * geometry.line_pitch;
      if constexpr (kQuads) {
        *reinterpret_cast<uint2*>(at) = make_uint2(bits.x, bits.y);
      } else {
        *reinterpret_cast<uint4*>(at) = bits;
      }
    }
  }
}

// Starts to copy the thread's share of the halo of a tile: to its place, or raw. `source` is the group's.
KNNCONV_DEVICE void StageHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps,
                              const char* source, int tile, int thread, char* to) {
  const HaloPlace place = PlaceOfHalo(gemm, geometry, taps, source, tile);
  if (geometry.raw_bytes == 0) {
    CopyHalo(gemm, geometry, place, thread, to);
  } else {
    CopyRawHalo(gemm, geometry, place, thread, to);
  }
}

// Puts a raw halo that has arrived in place, as elements of type T.
template <typename T, bool kQuads>
KNNCONV_DEVICE void UnpackHalo(const TapGemm& gemm, const HaloGeometry& geometry, const HaloTaps& taps,
                               const char* source, int tile, const char* raw, char* to) {
  const HaloPlace place = PlaceOfHalo(gemm, geometry, taps, source, tile);
  if (gemm.source_type == Element::kF32) {
    PlaceRawHalo<T, kQuads, float>(gemm, geometry, place, raw, to);
  } else {
    PlaceRawHalo<T, kQuads, T>(gemm, geometry, place, raw, to);
  }
}

}  // namespace knnconv::gpu
