// The second kernel of a weight gradient: partial sums of slices, added in a fixed order and rounded once.
//
//     dw[group, i] = sum over slices s:  partials[group, s, i]
//     db[group, o] = sum over slices and parts p:  bias_partials[group, p, o]
#pragma once

#include <cstdint>

#include "gpu/dweight.h"

namespace knnconv::gpu {

// Elements of dw's partial sums, behind which those of db stand.
inline int64_t WeightPartials(const Dweight& dweight, int64_t slices) {
  return dweight.shapes.groups.count() * slices * dweight.slots * dweight.channels * dweight.columns;
}

// Both sums of all groups in one launch, from dweight.partials: of dw, `slices` rows a group; of db, `bias_parts` rows
// a slice.
Status RunReduce(const LaunchSite& site, const Dweight& dweight, int64_t slices, int64_t bias_parts);

}  // namespace knnconv::gpu
