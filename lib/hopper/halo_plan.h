// How a halo kernel's work is laid out on Hopper: tiles of blocks of 8x8 pixels, and what lies where in shared memory.
//
// Source pixels lie so that 8 neighbours of a tile's line are a core of wgmma (wgmma.h), wherever the first of them is:
//
//     chunks (8 channels)   line: [chunk 0: 16 bytes of each pixel in a row][chunk 1: ...] ...
//     pairs (1-4 channels)  line: [16 bytes of each two pixels, 4 elements a pixel][of every other pixel, and 8 zeros]
//
// A block's product is 64 rows: a line's 8 pixels are a core, and lines lie equally far apart. A tap moves the address.
// Pairs serve forward with a stride of 2, where the next pixel of a tile is the next pair: a core's 8 in depth are two
// taps of 4 channels each, and the last tap of an odd number has a zero pixel beside it.
#pragma once

#include <cstdint>

#include "gpu/halo_plan.h"

namespace knnconv::hopper {

inline constexpr int kBlockSide = 8;    // pixels of a block's lines, and lines of a block
inline constexpr int kHaloTeams = 4;    // warpgroups of a thread block, each with tiles of its own
inline constexpr int kTeamThreads = 128;
inline constexpr int kStepElements = 16;  // in depth, of a product

// Bytes from a chunk to the next, each 16 bytes of `pixels`, such that copies of neighbouring pixels' chunks, 8 at a time,
// go to different banks.
int32_t ChunkPitch(int64_t pixels, int chunks);

// Where pixels of chunks lie in a halo whose lines hold `stored_chunks`.
void LayOutChunks(int stored_chunks, gpu::HaloGeometry* geometry);

// Columns of a tile, and its blocks of pixels: registers hold columns * blocks / 2 sums a thread.
struct HaloForm {
  int columns, blocks;
};

inline HaloForm FormOf(const gpu::TapGemm& gemm) {
  return gemm.columns <= 32 ? HaloForm{32, 2} : HaloForm{64, 2};
}

inline bool HasPairs(const gpu::TapGemm& gemm) { return gpu::IsQuad(gemm); }

struct HaloPlan : gpu::HaloGeometry {
  uint32_t column_tiles, blocks_of_kind;  // thread blocks; a kind: group, class, column tile
  int32_t blocks_across;                  // of pixels in a tile
  int32_t row_pitch;                      // bytes from 8 pixels of a block to the 8 below
  int32_t stored_chunks;                  // of a line: those of a pixel, and one of zeros if they are odd in number
  int32_t pairs, singles_at;              // of a line; 0: there are no singles
  gpu::HaloShare pair_share;
  // Steps in depth: of a tap or, with pairs, of a line of taps; of all, in the class with the most. The upper 8 of a
  // step lie `lead` bytes further on; in the last step of a line, `last_lead`.
  int32_t steps_of_group, steps, step_pitch, lead, last_lead;
  // Places in shared memory. Each team has a halo and, stage_at bytes behind its start, a second one or raw lines; 0
  // where there is room for one only.
  int32_t slots_at, steps_at, bias_at, weight_at, team_at, team_bytes, stage_at, bytes;
};

// False where the problem does not suit these kernels, or not fit into a block's `shared_limit` bytes.
bool PlanHalo(const gpu::TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan);

// Instantiated in a source of its own for each type of products.
template <typename T>
gpu::Status LaunchHalo(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const HaloPlan& plan, int shared_limit);

}  // namespace knnconv::hopper
