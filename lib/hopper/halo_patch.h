// Patches: what the taps of a pixel read, one tap behind the other with 4 channels each, where x has no more.
//
// A patch is a line of 128 bytes in shared memory, as products read it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/halo_stage.h"
#include "hopper/halo_dweight_plan.h"

namespace knnconv::hopper {

// Bits of an element, or 0. A load that is left out by a predicate, so that all of a patch are in flight together.
KNNCONV_DEVICE uint32_t ReadBits(const float* at, bool exists) {
  uint32_t bits;
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.nc.b32 %0, [%1];\n}"
      : "=r"(bits)
      : "l"(at), "r"(static_cast<int>(exists)));
  return bits;
}
template <typename T>
KNNCONV_DEVICE uint32_t ReadBits(const T* at, bool exists) {
  uint16_t bits;
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b16 %0, 0;\n@p ld.global.nc.b16 %0, [%1];\n}"
      : "=h"(bits)
      : "l"(at), "r"(static_cast<int>(exists)));
  return bits;
}

// The element that bits of `From` stand for, rounded to T.
template <typename T, typename From>
KNNCONV_DEVICE uint32_t RoundBits(uint32_t bits) {
  if constexpr (std::is_same_v<From, float>) {
    union {
      T value;
      uint16_t bits;
    } rounded{gpu::FromFloat<T>(__uint_as_float(bits))};
    return rounded.bits;
  } else {
    return bits;
  }
}

// Elements of a pixel's taps as they are read.
struct Patch {
  uint32_t bits[kPatchTaps][gpu::kMostQuadChannels];
};

// Reads what the taps of the pixel (i, j) of the result read: zeros where there is no pixel, tap or channel.
template <typename From>
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
#pragma unroll
    for (int e = 0; e < gpu::kMostQuadChannels; ++e) {
      patch.bits[tap][e] = ReadBits(at + e, inside && e < forward.depth);
    }
    if (++across == window.kernel[1]) {
      across = 0;
      ++down;
    }
  }
  return patch;
}

// Where 16 bytes of line `number` lie, swizzled as products read them.
KNNCONV_DEVICE uint4* PatchChunk(char* patches, int number, int chunk) {
  return reinterpret_cast<uint4*>(patches + number * kPatchBytes + (chunk ^ number % 8) * 16);
}

// Writes a patch as line `number`, and one more element behind its taps.
template <typename T, typename From>
KNNCONV_DEVICE void WritePatch(const Patch& patch, uint32_t last, int number, char* patches) {
  uint2 tap[2 * kPatchChunks] = {};
#pragma unroll
  for (int i = 0; i < kPatchTaps; ++i) {
    const auto bits = [&](int e) { return RoundBits<T, From>(patch.bits[i][e]); };
    tap[i] = make_uint2(bits(0) | bits(1) << 16, bits(2) | bits(3) << 16);
  }
  tap[kPatchTaps].x = last;
#pragma unroll
  for (int chunk = 0; chunk < kPatchChunks; ++chunk) {
    const uint2 &first = tap[2 * chunk], &second = tap[2 * chunk + 1];
    *PatchChunk(patches, number, chunk) = make_uint4(first.x, first.y, second.x, second.y);
  }
}

// Clears what no patch is written to.
KNNCONV_DEVICE void ClearPatch(int number, char* patches) {
#pragma unroll
  for (int chunk = kPatchChunks; chunk < kPatchBytes / 16; ++chunk) {
    *PatchChunk(patches, number, chunk) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace knnconv::hopper
