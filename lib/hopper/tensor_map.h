// Tensor maps: what the copy engine knows of an operand. Made on the host for each call, passed to kernels by value.
//
// Maps have the 128-byte swizzle unless they say otherwise: boxes are as wide as the swizzle at most. Reads of what
// lies outside the tensor give zeros. Dimensions are named fastest first.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/status.h"

namespace knnconv::hopper {

// Looks up the driver's encoders, once. Called in the Initialize stage, so that Execute queries nothing.
gpu::Status PrepareTensorMaps();

inline constexpr int kMaxMapRank = 5;

struct BoxMap {
  gpu::Element type;
  const void* address;  // a multiple of 16
  int rank;
  uint64_t size[kMaxMapRank];        // elements, none 0
  uint64_t stride[kMaxMapRank - 1];  // bytes from one entry of dimension i + 1 to the next, multiples of 16
  uint32_t box[kMaxMapRank];         // elements, 256 at most
  int swizzle = 128;                 // bytes: 128, 64, 32 or 0 for none
};

gpu::Status Encode(const BoxMap& spec, CUtensorMap* map);

// Pixels of [images, height, width, channels] in the order in which a filter's origin visits them: w from `lower` to
// `width - 1 + upper` in steps of `step`, then h likewise, then images.
struct PixelMap {
  gpu::Element type;
  const void* address;
  int64_t channels, width, height, images;
  int lower[2], upper[2];  // of (w, h), each in [-128, 127]
  int step[2];             // of (w, h), 1 to 8
  int pixels;              // of a copy, 256 at most; it takes 64 channels
};

gpu::Status Encode(const PixelMap& spec, CUtensorMap* map);

}  // namespace knnconv::hopper
