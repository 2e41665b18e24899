// What a caller may force of a call that shapes otherwise choose: the family of kernels, and the portable kernels'
// tile. tap_choice.h and dweight_choice.h hold the choice itself.
#pragma once

#include <string_view>

#include "gpu/status.h"

namespace knnconv::gpu {

// kHalo's kernels know how mma.sync's operands lie in registers, so that they are CUDA's alone; their own checks run
// them on the CPU. A program that links without them defines KNNCONV_WITHOUT_HALO; one that asks for choices and links
// no kernels, KNNCONV_RULES_ALONE.
#if defined(KNNCONV_RULES_ALONE)
inline constexpr bool kHasHaloKernels = true;
#elif defined(__HIP_PLATFORM_AMD__) || defined(KNNCONV_PLAIN) || defined(KNNCONV_WITHOUT_HALO)
inline constexpr bool kHasHaloKernels = false;
#else
inline constexpr bool kHasHaloKernels = true;
#endif

// Hopper's are there where its architecture is among those that the module is built for.
#if defined(KNNCONV_HOPPER) || defined(KNNCONV_RULES_ALONE)
inline constexpr bool kHasHopperKernels = true;
#else
inline constexpr bool kHasHopperKernels = false;
#endif

enum class KernelFamily {
  kByShape,
  kAnyPortable,  // by shape, among those that run on every architecture: kPortable and kHalo
  kPortable,     // tap_gemm.h, dweight.h
  kHalo,         // few channels, a patch of the image staged once
  kHopper,       // TMA and wgmma, compute capability 9.0
};

// The family of a name in docs/handlers.md. False where it is none.
inline bool FindKernelFamily(std::string_view name, KernelFamily* family) {
  *family = name == "wmma"       ? KernelFamily::kAnyPortable
            : name == "portable" ? KernelFamily::kPortable
            : name == "halo"     ? KernelFamily::kHalo
            : name == "hopper"   ? KernelFamily::kHopper
                                 : KernelFamily::kByShape;
  return *family != KernelFamily::kByShape;
}

// Whether a caller who wants `wanted` may be served by `family`, if that takes the call.
constexpr bool Allows(KernelFamily wanted, KernelFamily family) {
  return wanted == family || wanted == KernelFamily::kByShape ||
         (wanted == KernelFamily::kAnyPortable && family != KernelFamily::kHopper);
}

// What launchers return where `wanted` allows no kernel that takes the call.
inline Status Refused(KernelFamily wanted, const char* file, int line) {
  const char* const call = wanted == KernelFamily::kHopper ? "kernel=\"hopper\" does not take this call"
                           : wanted == KernelFamily::kHalo ? "kernel=\"halo\" does not take this call"
                                                           : "no kernel of those that are allowed takes this call";
  return {gpuErrorNotSupported, file, line, call};
}

// A thread block's tile, and how it is staged, in the portable kernels.
struct TileChoice {
  int rows = -1, columns = -1;  // -1: by shape
  int vector = -1;              // 0: one element at a time; else 16 bytes where each operand allows
  bool asynchronous = true;     // false: 16 bytes at a time go through registers too
  KernelFamily kernel = KernelFamily::kByShape;

  // As in docs/handlers.md: 0 by elements, 1 by vectors, 2 by vectors through registers, -1 by shape.
  void set_staging(int staging) {
    vector = staging;
    asynchronous = staging != 2;
  }
};

// The same for dweight, whose sums are split.
struct DweightChoice : TileChoice {
  int slices = -1;  // -1: by shape; 1: unsplit
};

}  // namespace knnconv::gpu
