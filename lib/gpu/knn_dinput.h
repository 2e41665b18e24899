// dinput of a table, for the handlers that compute dx alone or among other results.
#pragma once

#include "gpu/handler.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

// Checks the operands of docs/handlers.md and launches (or, at a preparing site, makes ready) all that dx needs.
ffi::Error RunKnnDinput(const LaunchSite& site, const Buffer& g, const Buffer& weight, const Buffer& source_offsets,
                        const Buffer& source_rows, const Buffer& source_slots, const Buffer& dx, const Buffer& packed,
                        const TileChoice& tile);

}  // namespace knnconv::gpu
