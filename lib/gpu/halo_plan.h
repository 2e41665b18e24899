// How a halo kernel's work is laid out: tiles of output pixels, their halos in shared memory, and what lies there
// besides.
//
// Pixels of the result fall into classes with a common list of taps (WindowTaps). A tile is a rectangle of one class's
// pixels of one image; its halo is the rectangle of source pixels that its taps read. Columns of the halo lie in planes
// by their residue of the step, so that neighbours in the tile are neighbours in shared memory whatever the stride.
#pragma once

#include <cstdint>

#include "gpu/divisor.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

inline constexpr int kMostQuadChannels = 4;  // of a source pixel that is held as four elements
inline constexpr int kHaloChunk = 8;         // elements of the 16-byte units that other pixels are made of

constexpr int HaloWeightPitch(int columns) { return columns * 2 + (columns > 8 ? 16 : 0); }

// A kernel's fixed sizes, by what a source pixel is and by how many products of 8 columns a tile has. Registers hold
// rows * columns / 128 sums a thread.
struct HaloFixed {
  int warps;
  int rows;     // pixels of a tile
  int columns;  // of a tile
  int blocks;   // that share a multiprocessor, as registers allow
};

constexpr HaloFixed HaloFixedOf(bool quads, int products) {
  if (products == 1) return {8, 256, 8, 3};
  if (products == 4) return quads ? HaloFixed{4, 256, 32, 4} : HaloFixed{8, 256, 32, 2};
  return quads ? HaloFixed{4, 256, 64, 2} : HaloFixed{8, 256, 64, 2};
}

// Floats from a row to the next of the patch that each warp has for 16 pixels' results.
KNNCONV_HOST_DEVICE constexpr int HaloPatchPitch(int columns) { return columns + 4; }

inline bool IsQuad(const TapGemm& gemm) { return gemm.depth <= kMostQuadChannels; }

// Products of 8 columns in a tile of `gemm`. Quads have few steps, which one product would not fill.
inline int HaloProducts(const TapGemm& gemm) {
  return gemm.columns <= 8 && !IsQuad(gemm) ? 1 : gemm.columns <= 32 ? 4 : 8;
}

// How threads share a rectangle of lines of units: `width` threads side by side, `rows` of them down.
struct HaloShare {
  int32_t width, rows;
  Divisor by_width;
};

// Tiles of the result, and where a halo's pixels lie in shared memory.
struct HaloGeometry {
  int32_t step[2];     // source pixels from one pixel of the tile to the next
  int32_t spacing[2];  // pixels of the result, the same
  int32_t tile[2];     // height and width of a tile
  int32_t halo[2];     // of its halo, in the class with the most
  int32_t tiles[2];    // tiles of an image's class down and across, in the class with the most
  uint32_t classes;
  int32_t all_tiles;   // of one class: those of all images
  int32_t chunks;      // of a pixel; 1 where it is a quad
  int32_t taps;        // of the class with the most
  // Bytes from a chunk of a pixel, a pixel, a plane, a line of the halo to the next.
  int32_t chunk_pitch, pixel_pitch, plane_pitch, line_pitch;
  int32_t halo_bytes;
  // Source pixels that 16-byte copies cannot put in place (channels no multiple of 8, float32) are copied as they lie
  // in memory, line by line, and put in place from there. 0: copies put them in place.
  int32_t raw_pitch, raw_bytes;
  bool aligned_source;
  HaloShare share, raw_share;  // of a halo's chunks or quads, and of raw lines' 16 bytes

  Divisor by_width, by_chunks, by_step, by_tiles_across, by_tiles, by_padded_depth, by_kernel_width;
};

// Pixels of the largest class.
struct HaloSize {
  int64_t pixels[2];
};
HaloSize LargestClass(const WindowTaps& window);

// Takes the share with the fewest passes.
HaloShare ShareLines(int units, int lines, int threads);

// The geometry of tiles of this height and width, which `threads` stage. False where counts leave 32 bits or a halo
// would be far too large.
bool PlanTiles(const TapGemm& gemm, bool quads, int threads, int height, int width, HaloGeometry* geometry);

// The same of tiles of at most `rows` pixels.
bool PlanGeometry(const TapGemm& gemm, bool quads, int threads, int rows, HaloGeometry* geometry);

// What forward and dinput add.
struct HaloPlan : HaloGeometry {
  uint32_t column_tiles, blocks_of_kind;  // a kind: group, class, column tile
  bool vector_weight, vector_out;         // 16-byte loads and stores are possible
  int32_t weight_pitch;                   // bytes from one column's depth to the next, where weights are transposed
  // Places in shared memory, after 16 bytes of zeros. At stage_at the halo, where there is room for one only, a second
  // one, or raw lines; at patch_at, room for results that are stored one by one.
  int32_t bias_at, slots_at, table_at, weight_at, halo_at, stage_at, patch_at, bytes;
};

// False also where the problem does not fit into a block's `shared_limit` bytes.
bool PlanHalo(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan);

// Blocks of `bytes` shared memory that a multiprocessor holds, at most `most`.
int ResidentBlocks(int64_t bytes, int shared_limit, int most);

}  // namespace knnconv::gpu
