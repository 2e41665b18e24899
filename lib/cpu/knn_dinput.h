// dx[b, n, :] = sum over taps (m, slot) of source n:  g[b, m, :] @ weight[slot]^T
//
// The body of the knn_dinput handler, for handlers that compute dx among other results. docs/handlers.md states the
// operands.
#pragma once

#include "common/ffi.h"

namespace knnconv::cpu {

ffi::Error RunKnnDinput(ffi::ThreadPool& pool, ffi::AnyBuffer g, ffi::AnyBuffer weight, ffi::AnyBuffer source_offsets,
                        ffi::AnyBuffer source_rows, ffi::AnyBuffer source_slots, ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Result<ffi::AnyBuffer> packed);

}  // namespace knnconv::cpu
