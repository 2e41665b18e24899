// Which kernel of each element type and weight order runs a tile. Each pair is instantiated in a source of its own.
#pragma once

#include "gpu/divisor.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

inline constexpr int kTapThreads = 128;

// What a launch adds to a TapGemm for its kernels.
struct TapGrid {
  Divisor depth;
  int64_t row_tiles, column_tiles;
  int64_t classes;  // of pixels, 1 except in a strided dense dinput
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
