// How long chains of products in a weight gradient's accumulators may be.
#pragma once

#include <cstdint>

#include "gpu/dweight_plan.h"
#include "gpu/elements.h"

namespace knnconv::hopper {

// Positions whose products lie in one chain: those of the portable kernels where results are fp32. Each 16 of them may
// lose an eps32 of a sum of one sign, so that chains this much longer still lose a fraction of what rounding to 16 bits
// does.
inline int64_t ChainPositions(gpu::Element result) {
  const int times = result == gpu::Element::kF32 ? 1 : result == gpu::Element::kF16 ? 4 : 8;
  return int64_t{times} * gpu::kChainPositions;
}

}  // namespace knnconv::hopper
