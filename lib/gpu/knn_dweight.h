// dweight of a table, for the handlers that compute dw alone or among other results.
#pragma once

#include "gpu/dweight.h"
#include "gpu/handler.h"

namespace knnconv::gpu {

// The table's operands as dweight takes them.
struct TableOperands {
  Buffer indices, slots, slot_offsets, slot_rows, slot_sources;
};

// Checks the operands of docs/handlers.md and launches (or, at a preparing site, makes ready) all that dw and db need.
ffi::Error RunKnnDweight(const LaunchSite& site, const Buffer& x, const Buffer& g, const TableOperands& table,
                         const Buffer& dw, const Buffer& db, const Buffer& partials, bool zero_empty_rows,
                         const DweightChoice& choice);

}  // namespace knnconv::gpu
