// The second kernel of a weight gradient: partial sums of slices, added in a fixed order and rounded once.
//
//     dw[group, i] = sum over slices s:  partials[group, s, i]
//     db[group, o] = sum over slices and parts p:  bias_partials[group, p, o]
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/launch.h"

namespace knnconv::gpu {

// Results of one kind: `size` elements a group, each the sum of `parts` rows of `partials` [groups, parts, size].
struct PartialSums {
  const float* partials;
  int64_t parts, size;
  void* out;
  Element type;
};

// Both sums of all groups in one launch; a size of 0 leaves one out.
Status RunReduce(const LaunchSite& site, int64_t groups, const PartialSums& weight, const PartialSums& bias);

}  // namespace knnconv::gpu
