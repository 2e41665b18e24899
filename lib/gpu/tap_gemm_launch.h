// How the portable kernels run a TapGemm. Each pair of element type and weight order is instantiated in a source of its
// own.
#pragma once

#include <type_traits>

#include "gpu/divisor.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

inline constexpr int kTapThreads = 128;

// How the operand tiles reach shared memory.
enum class Staging {
  kAsync,  // both by asynchronous 16-byte copies
  kAny,    // any shape and source type, through registers
  kCells,  // source rows of a (node, slot) cell are added up first; the weights as in kAsync
};
// Cells are for dinput in bf16: a sum is held in two parts of the operand type, and in fp16 it could leave its range.
template <typename T, bool kTransposed>
inline constexpr bool kCellsStage = kTransposed && std::is_same_v<T, BFloat>;

inline constexpr int kRegisterStagedRows = 64;  // the one height of tiles that are not kAsync

inline constexpr int kDepth = 64;  // of a step of the main loop: a source row's 128 bytes are one line of the cache

// What a launch adds to a TapGemm for its kernels.
struct TapGrid {
  Divisor depth;
  bool whole_steps;  // no depth step straddles two layers
  uint32_t row_tiles, column_tiles;
  uint32_t classes;  // of pixels, 1 except in a strided dense dinput
};

// A tile with all fields set, which operands are read 16 bytes at a time, and the tiles of all.
struct TapLaunch {
  int rows, columns;
  Staging staging;
  bool vector_a, vector_b;
  TapGrid grid;
  int64_t blocks;
};

template <typename T, bool kTransposed>
Status LaunchTapGemm(const LaunchSite& site, const TapGemm& gemm, const TapLaunch& launch);

}  // namespace knnconv::gpu
