// The warp's matrix instructions with their registers in view, for kernels whose rows lie anywhere in shared memory.
//
//     LoadMatrices<transpose>(registers, row)    four 8x8 matrices of 16-bit elements; a lane gives a row's address
//     Multiply16x8<T>(c, a, b0, b1)              c[16, 8] += a[16, 16] @ b[16, 8]
//
// A lane with g = lane / 4 and t = lane % 4 holds, of an 8x8 matrix, elements (g, 2t) and (g, 2t + 1) in one register;
// of a[16, 16] its quarters top left, bottom left, top right, bottom right; of b[16, 8] elements (2t, g), (2t + 1, g),
// and then the same 8 rows below; of c elements (g, 2t), (g, 2t + 1), and then the same 8 rows below.
#pragma once

#include "gpu/fragment.h"

#if defined(KNNCONV_PLAIN)

#include "gpu/plain/matrix_ops.h"

#else

namespace knnconv::gpu {

using internal::LoadMatrices;
using internal::Multiply16x8;

}  // namespace knnconv::gpu

#endif
