// Arithmetic of sizes and addresses that plans and launchers share.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::gpu {

KNNCONV_HOST_DEVICE constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool IsAligned(const void* address, int bytes = 16) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

}  // namespace knnconv::gpu
