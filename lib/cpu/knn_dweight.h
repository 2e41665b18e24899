// dw[v, c, o] = sum over batch and taps (m, source) of slot v:  x[b, source, c] * g[b, m, o]
// db[o] = sum over batch and m:  g[b, m, o]
//
// The body of the knn_dweight handler, for handlers that compute dw among other results. docs/handlers.md states the
// operands.
#pragma once

#include "common/ffi.h"

namespace knnconv::cpu {

ffi::Error RunKnnDweight(ffi::ThreadPool& pool, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::AnyBuffer indices,
                         ffi::AnyBuffer slots, ffi::AnyBuffer slot_offsets, ffi::AnyBuffer slot_rows,
                         ffi::AnyBuffer slot_sources, ffi::AnyBuffer dw, ffi::AnyBuffer db, ffi::AnyBuffer partials,
                         bool zero_empty_rows);

}  // namespace knnconv::cpu
