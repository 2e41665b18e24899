// Patches: what the taps of a pixel read, one tap behind the other with 4 channels each, where x has no more.
//
// A patch is a line of 128 bytes in shared memory, as products read it: pixels are rows in forward, depth in dweight.
#pragma once

#include <cstdint>

#include "gpu/halo_stage.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {

// Of each tap 4 elements.
struct Patch {
  uint2 tap[kPatchTaps];
};

// Reads what the taps of the pixel (i, j) of the result read: zeros where there is no pixel, tap or channel.
template <typename T, typename From>
KNNCONV_DEVICE Patch ReadPatch(const gpu::TapGemm& forward, int image_number, int i, int j, bool has_image) {
  const gpu::WindowTaps& window = forward.window;
  const bool exists = has_image && i < window.out_size[0] && j < window.out_size[1];
  const int first_line = i * window.stride[0] - window.padding[0];
  const int first_column = j * window.stride[1] - window.padding[1];
  const From* const image =
      static_cast<const From*>(forward.source) + int64_t{image_number} * forward.source_rows * forward.depth;
  Patch patch;
  int down = 0, across = 0;
#pragma unroll
  for (int tap = 0; tap < kPatchTaps; ++tap) {
    const int line = first_line + down * window.dilation[0], column = first_column + across * window.dilation[1];
    const bool inside = exists && tap < forward.slots && gpu::IsInside(line, window.source_size[0]) &&
                        gpu::IsInside(column, window.source_size[1]);
    const From* const at = image + (line * window.source_size[1] + column) * forward.depth;
    union {
      uint2 bits;
      T value[gpu::kMostQuadChannels];
    } elements{make_uint2(0, 0)};
#pragma unroll
    for (int e = 0; e < gpu::kMostQuadChannels; ++e) {
      if (inside && e < forward.depth) elements.value[e] = gpu::FromFloat<T>(gpu::ToFloat(at[e]));
    }
    patch.tap[tap] = elements.bits;
    if (++across == window.kernel[1]) {
      across = 0;
      ++down;
    }
  }
  return patch;
}

// Writes a patch as line `number`, swizzled as products read it.
KNNCONV_DEVICE void WritePatch(const Patch& patch, int number, char* patches) {
  char* const line = patches + number * kPatchBytes;
#pragma unroll
  for (int chunk = 0; chunk < kPatchTaps / 2; ++chunk) {
    const uint2 &first = patch.tap[2 * chunk], &second = patch.tap[2 * chunk + 1];
    *reinterpret_cast<uint4*>(line + (chunk ^ number % 8) * 16) = make_uint4(first.x, first.y, second.x, second.y);
  }
}

}  // namespace knnconv::hopper
