// Sums of four neighbours at a time.
#pragma once

#include "gpu/vendor.h"

namespace knnconv::hopper {

KNNCONV_DEVICE void Add(float4* sum, const float4& value) {
  sum->x += value.x;
  sum->y += value.y;
  sum->z += value.z;
  sum->w += value.w;
}

}  // namespace knnconv::hopper
