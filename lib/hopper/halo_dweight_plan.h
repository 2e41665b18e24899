// How a halo kernel for dweight is laid out on Hopper: how dw lies in registers, and stages in shared memory.
//
// Rows of a product are 64 columns of g, and its columns 96 rows of dw: up to 12 chunks of x that lie equally far apart
// in the halo, which are the channels of one tap, of the tap below and so on, as lines of the halo follow each other.
// Such a run of chunks is a group; a team has three in its registers.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {

inline constexpr int kDweightTeams = 2;      // warpgroups of a thread block, each with tiles of its own
inline constexpr int kDweightGroups = 3;
inline constexpr int kGroupChunks = 12;
inline constexpr int kDweightColumns = 64;   // of g
inline constexpr int kDweightPixels = 128;   // of a tile

struct HaloDweightPlan : gpu::HaloGeometry {
  uint32_t column_tiles, slices;  // a thread block for each, and for each group
  int32_t steps;                          // of a tile: 16 pixels each
  int32_t step_pitch, lead;               // bytes from a step's first 8 pixels in the halo to the next step's, to its second 8
  int32_t pieces;                         // groups of a column of taps
  // Of g's tile: chunks of a pixel that are copied, bytes from one to the next, and of all that a product reads.
  int32_t cotangent_chunks, cotangent_pitch, cotangent_bytes;
  gpu::Divisor by_cotangent_chunks;
  int32_t stage_bytes, bytes;  // of shared memory. A stage is a tile of g and a halo; each team has two.
  float* bias_partials;  // [groups, slices, columns], or null; dw's are [groups, slices, V * C, columns]
};

// False where the problem does not suit these kernels, or not fit.
bool PlanHaloDweight(const gpu::Dweight& dweight, const gpu::TapGemm& forward, int multiprocessors, int shared_limit,
                     HaloDweightPlan* plan);

// Launches the first kernel. Instantiated in a source of its own for each type of products.
template <typename T>
gpu::Status LaunchHaloDweight(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const gpu::TapGemm& forward,
                              const HaloDweightPlan& plan, int shared_limit);

}  // namespace knnconv::hopper
