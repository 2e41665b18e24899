// How the portable kernels run a Dweight. Each kind of taps is instantiated in a source of its own.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "gpu/dweight_plan.h"

namespace knnconv::gpu {

// Which operands are staged 16 bytes at a time: by asynchronous copies, or both of them through registers. g goes
// first: where x alone could be, neither is.
enum class DweightStaging { kScalar, kCotangent, kBoth, kRegisters };

inline constexpr int kRowsThroughRegisters = 64;  // the one height of tiles that are kRegisters

// What a launch adds to a Dweight for its kernels.
struct DweightGrid {
  uint32_t row_tiles, column_tiles, slices;
  int32_t tiles_of_slot;  // where a tile's rows are of one slot
  int32_t bias_parts;     // 0: no db
  float* bias_partials;   // [groups, slices, bias_parts, columns]; dw's are [groups, slices, rows of dw, columns]
  bool vector_partials;   // they can be written four elements at a time
};

// A tile and its staging, and the tiles and slices of all.
struct DweightLaunch {
  TileShape tile;
  DweightStaging staging;
  DweightGrid grid;
  int64_t blocks;
};

// The first kernel; dweight_reduce.h has the second one.
template <typename Taps>
Status LaunchDweight(const LaunchSite& site, const Dweight& dweight, const Taps& taps, const DweightLaunch& launch);

}  // namespace knnconv::gpu
