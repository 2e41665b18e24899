// Tensor-core fragments: 16x16x16 products of fp16 or bf16 tiles with fp32 accumulators.
//
//     acc[16, 16] += a[16, 16] @ b[16, 16]
//
// Kernels use these types and functions only; how a fragment lies in registers is the backend's matter. All lanes of a
// warp (kWarpSize of them, 64 on gfx9) call each function together. Tiles lie in shared memory, `pitch` elements from
// one row (kRow) or column (kCol) to the next: a multiple of 8, and a tile's first element is 16-byte aligned.
#pragma once

#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr int kFragment = 16;

// kRow: element (i, j) at i * pitch + j. kCol: at j * pitch + i.
enum class Major { kRow, kCol };

}  // namespace knnconv::gpu

#if defined(__HIP_PLATFORM_AMD__) || defined(KNNCONV_AMD_MODEL)
#include "gpu/fragment_amd.h"
#elif defined(KNNCONV_PLAIN)
#include "gpu/fragment_plain.h"
#else
#include "gpu/fragment_mma.h"
#endif
