// Which kernel of each element type and weight order runs a tile. Each pair is instantiated in a source of its own.
#pragma once

#include "gpu/divisor.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

inline constexpr int kTapThreads = 128;
inline constexpr int kAnyStagedRows = 64;  // the one height of tiles that are not staged by asynchronous copies
inline constexpr int kDepth = 64;  // of a step of the main loop: a source row's 128 bytes are one line of the cache

// What a launch adds to a TapGemm for its kernels.
struct TapGrid {
  Divisor depth;
  bool whole_steps;  // no depth step straddles two layers
  uint32_t row_tiles, column_tiles;
  uint32_t classes;  // of pixels, 1 except in a strided dense dinput
};

// A tile with all fields set, and which operands are read 16 bytes at a time.
struct TapLaunch {
  int rows, columns;
  bool vector_a, vector_b;
  bool asynchronous;  // both, and neither needs a conversion
  int64_t blocks;
};

template <typename T, bool kTransposed>
Status LaunchTapGemm(const LaunchSite& site, const TapGemm& gemm, const TapGrid& grid, const TapLaunch& launch);

}  // namespace knnconv::gpu
