// Pairs of pixels of up to 4 channels in shared memory: 16 bytes, 4 elements each (halo_plan.h).
//
// The copy engine brings a halo's lines as they lie in memory, from a multiple of 16 bytes on, with zeros for what lies
// outside the image; a team's threads make pairs of them. Tiles are multiples of 8 pixels wide, so that halos begin at
// the same place in 16 bytes.
#pragma once

#include <cstdint>

#include "gpu/halo_stage.h"
#include "hopper/halo_plan.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// Loads the lines of a tile's halo to `to`. By one thread. `first_line`: of the halo of tile (0, 0).
KNNCONV_DEVICE void LoadLines(const gpu::HaloGeometry& geometry, const PairLines& lines, int first_line, int channels,
                              const CUtensorMap& source, int tile_number, char* to, Barrier* full) {
  const gpu::HaloTile tile = gpu::FindTile(geometry, tile_number);
  full->ArriveExpecting(geometry.halo[0] * lines.raw_pitch);
  LoadBox(to, &source, full, tile.j * geometry.step[1] * channels + lines.raw_column,
          tile.i * geometry.step[0] + first_line, tile.image);
}

// Two neighbouring pixels of 3 channels, 16 bits each, as a pair. `at` is a multiple of 4 where `whole_words`, or of 2.
KNNCONV_DEVICE uint4 ReadTriples(const char* at, bool whole_words) {
  const uint32_t beyond = whole_words ? 0 : SharedAddress(at) % 4;
  const uint32_t* const word = reinterpret_cast<const uint32_t*>(at - beyond);
  uint32_t bits[3] = {word[0], word[1], word[2]};
  if (!whole_words) {
    const uint32_t last = word[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) bits[i] = __funnelshift_r(bits[i], i < 2 ? bits[i + 1] : last, beyond * 8);
  }
  return make_uint4(bits[0], bits[1] & 0xffff, __funnelshift_r(bits[1], bits[2], 16), bits[2] >> 16);
}

// Two neighbouring pixels as a pair, or the first, and zeros.
template <typename T, typename From>
KNNCONV_DEVICE uint4 ReadPair(const char* at, int depth, bool has_second, bool whole_words) {
  if constexpr (sizeof(From) == 2) {
    if (depth == 3) {
      const uint4 pair = ReadTriples(at, whole_words);
      return make_uint4(pair.x, pair.y, has_second ? pair.z : 0, has_second ? pair.w : 0);
    }
  }
  const From* const from = reinterpret_cast<const From*>(at);
  const uint4 one = gpu::ReadElements<T, gpu::kMostQuadChannels>(from, depth, 1);
  const uint4 two = gpu::ReadElements<T, gpu::kMostQuadChannels>(from + depth, has_second ? depth : 0, 1);
  return make_uint4(one.x, one.y, two.x, two.y);
}

// Puts the thread's share of lines in place as pairs, and as singles if there are. `fourth`: bits for the fourth
// channel of each pair's first pixel, which x has not, inside the image or not.
template <typename T, typename From>
KNNCONV_DEVICE void MakePairs(const gpu::HaloGeometry& geometry, const PairLines& lines, int depth, int thread,
                              const char* raw, char* to, uint32_t fourth = 0) {
  const gpu::HaloShare& share = lines.share;
  const gpu::Divisor::Result first = share.by_width.Divide(thread);
  if (first.quotient >= share.rows) return;
  const int pixel_bytes = depth * static_cast<int>(sizeof(From));
  const bool whole_words = geometry.step[1] == 2 && lines.raw_shift % 4 == 0;
#pragma unroll 1
  for (int pair = first.remainder; pair < lines.pairs; pair += share.width) {
    const int pixel = pair * geometry.step[1];
    const bool has_second = pixel + 1 < geometry.halo[1];
#pragma unroll 4
    for (int line = first.quotient; line < geometry.halo[0]; line += share.rows) {
      const char* const at = raw + lines.raw_shift + line * lines.raw_pitch + pixel * pixel_bytes;
      uint4 bits = ReadPair<T, From>(at, depth, has_second, whole_words);
      bits.y |= fourth << 16;
      char* const into = to + line * lines.pitch + pair * 16;
      *reinterpret_cast<uint4*>(into) = bits;
      if (lines.singles_at > 0) *reinterpret_cast<uint4*>(into + lines.singles_at) = make_uint4(bits.x, bits.y, 0, 0);
    }
  }
}

}  // namespace knnconv::hopper
