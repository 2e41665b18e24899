// How a halo kernel's work is laid out on Hopper: tiles of blocks of 8x8 pixels, and what lies where in shared memory.
//
// A block's product has 64 rows: 8 lines of 8 pixels, which are neighbours in memory. A tap moves the address and
// nothing else, whatever the first pixel is:
//
//     lines (8 to 64 channels)   a pixel is a line of 32, 64 or 128 bytes, as the copy engine writes and wgmma reads it
//     pairs (1 to 4 channels)    two pixels are 16 bytes, a line of a core (wgmma.h), 4 elements each
//
// Pairs serve forward, where the next pixel of a tile is the next pair: a core's 8 in depth are two taps of 4 channels.
// With a stride of 1 every pixel begins a pair, with 2 every other one. An odd number of taps ends with a single: a
// pair's first pixel, and zeros beside it, in a second row of pairs. Threads make pairs of lines as they lie in memory.
//
//     folds (dinput, 1 to 4      a pixel of g is a line as above; a product's columns are all channels of all pixels of
//     channels of dx)            dx in a fold: as high as `fold` pixels of g, as wide as one
//
// A and its way from shared memory cost as much for 3 columns as for 24, so folds have as many as pay. A fold's taps
// are the pixels of g that any of its pixels reads, at the others' weights of zero.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/halo_plan.h"
#include "hopper/pixel_classes.h"

namespace knnconv::hopper {

inline constexpr int kBlockSide = 8;  // pixels of a block's lines, and lines of a block
inline constexpr int kHaloTeams = 4;  // warpgroups of a thread block, each with tiles of its own
inline constexpr int kHaloStages = 2;
inline constexpr int kTeamThreads = 128;
inline constexpr int kHaloBlocks = 2;  // of a tile
inline constexpr int kHaloDepth = 16;  // of a product
inline constexpr int kFoldColumns[] = {8, 16, 24, 32, 48};  // of folds' products
inline constexpr int kWeightParts = 4;  // that arrive one by one: lines of taps, the last with all that are left
// Of shared memory besides a plan's.
inline constexpr int kHaloBarrierBytes = (kHaloTeams * kHaloStages + kWeightParts) * 8;

// Columns of a tile: 32 or 64. Folds have their own.
inline int HaloColumns(const gpu::TapGemm& gemm) { return gemm.columns <= 32 ? 32 : 64; }

// Bytes of a pixel's line of up to 64 channels, as it is stored.
inline int32_t LineBytes(int channels) { return channels <= 16 ? 32 : channels <= 32 ? 64 : 128; }

// Columns of a result's line in shared memory, of up to 128 bytes.
constexpr int ResultColumns(int element_bytes, int columns) {
  return columns * element_bytes <= 128 ? columns : 128 / element_bytes;
}

inline bool HasPairs(const gpu::TapGemm& gemm) { return gemm.depth <= gpu::kMostQuadChannels; }

inline bool HasFolds(const gpu::TapGemm& gemm) { return gemm.transposed && gemm.columns <= gpu::kMostQuadChannels; }

// A halo of pairs.
struct PairLines {
  int32_t pitch, raw_pitch;   // bytes from a line to the next, of pairs and as lines lie in memory
  int32_t raw_column;         // element of an image's line, a multiple of 16 bytes, with which tile (0, 0)'s box begins
  int32_t raw_shift;          // bytes from there to the halo's first pixel, in all tiles
  int32_t pairs, singles_at;  // of a line; 0: there are no singles
  gpu::HaloShare share;       // of its pairs
};

inline constexpr int kMostBox = 256;  // elements of a dimension, of what the copy engine brings at once

// The pairs of a halo, and behind a line's singles if it has them. False where the copy engine cannot bring lines.
bool PlanPairLines(const gpu::TapGemm& forward, bool singles, const gpu::HaloGeometry& geometry, PairLines* lines);

struct HaloPlan : gpu::HaloGeometry {
  PixelClasses classes_of_pixels;
  uint32_t column_tiles, blocks_of_kind;  // thread blocks; a kind: group, class, column tile
  int32_t blocks_across;                  // of pixels in a tile
  int32_t pixel_bytes;                    // of a line's pixel; with pairs, from a tile's pixel to the next
  int32_t halo_line, row_pitch;           // bytes from a line of the halo to the next, and from a line of a block
  PairLines pair_lines;
  int32_t pair_step;           // from a pair of taps to the next beside it, in pairs
  int32_t fold, fold_columns;  // a fold's height, and the columns of its product
  int32_t teams;               // of a thread block with folds
  bool column_pairs;           // a fold's columns 2 * i and the next are neighbours in memory, and aligned
  // Steps of 16 in depth: of a tap or, with pairs, of a line of taps; of all, in the class with the most. The second 8
  // of a step of pairs lie `lead` bytes further on; in the last step of a line, `last_lead`.
  int32_t steps_of_group, steps, lead, last_lead;
  // Room for results of lines: a team's, and a warp's among them. They may take the place of the halo that gave them.
  int32_t results_at, results_pitch, warp_results;
  bool results_in_halo;
  // Places in shared memory, from an address that is a multiple of 1024 on. A stage is what copies write: a halo of
  // lines, or lines as they lie in memory.
  int32_t bias_at, weight_at, halo_at, stage_bytes, copied_bytes, stages, bytes;
};

// Whether Hopper's halo kernels are to compute `gemm`: where they can if `forced`, else where they are expected to be
// the fastest, too; and how they are laid out.
bool ChooseHalo(const gpu::TapGemm& gemm, const gpu::Device& device, bool forced, HaloPlan* plan);

}  // namespace knnconv::hopper
