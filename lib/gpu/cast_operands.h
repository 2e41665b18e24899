// g16 = round(clip(g)), x16 = round(x): both operands of a backward pass cast in one launch.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/launch.h"

namespace knnconv::gpu {

struct CastOperand {
  const float* from;
  void* to;
  int64_t size;
};

// Cotangents beyond the range of `type`, fp16 or bf16, become its largest finite value; NaN stays.
Status RunCast(const LaunchSite& site, Element type, const CastOperand& cotangent, const CastOperand& input);

}  // namespace knnconv::gpu
