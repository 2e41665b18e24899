// How a halo kernel for dweight is laid out: which part of dw a block holds, and its stages in shared memory.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "gpu/halo_plan.h"

namespace knnconv::gpu {

// A block's tile of dw: 4 warps down, each with `units` times 16 rows, rows being (tap, channel padded to a multiple of
// 8), and `groups` warps across, each with 32 columns.
struct HaloDweightShape {
  int units, groups;
};

// Blocks that share a multiprocessor, as registers allow.
constexpr int HaloDweightBlocks(int units, int groups) { return (units <= 2 ? 4 : units <= 5 ? 3 : 2) / groups; }

struct HaloDweightPlan : HaloGeometry {
  HaloDweightShape shape;
  uint32_t row_tiles, column_tiles, slices;
  bool vector_cotangent, vector_partials;  // 16-byte copies of g and 8-byte stores of partials are possible
  int32_t cotangent_pitch;                 // bytes from a pixel of g's tile to the next
  // Places in shared memory. A stage is a tile of g, and a halo if that is copied to its place.
  int32_t slots_at, table_at, halo_at, raw_at, stage_at, cotangent_bytes, stage_bytes, bytes;
  float* bias_partials;  // [groups, slices, columns], or null; dw's are [groups, slices, V * C, columns]
};

// The forward convolution that dweight belongs to: its taps, with x as the source.
TapGemm ForwardOf(const Dweight& dweight, const DenseTaps& taps);

// Takes the shape with the least rows that holds all of dw, or the largest. False where the problem does not fit.
bool PlanHaloDweight(const Dweight& dweight, const TapGemm& forward, int multiprocessors, int shared_limit,
                     HaloDweightPlan* plan);

// Launches the first kernel. Instantiated in a source of its own for each type of products.
template <typename T>
Status LaunchHaloDweight(const LaunchSite& site, const Dweight& dweight, const TapGemm& forward,
                         const HaloDweightPlan& plan, int shared_limit);

}  // namespace knnconv::gpu
