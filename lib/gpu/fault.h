// Deliberate faults, to see that the tests catch each: -DKNNCONV_FAULT=kName (CMake: JAX_KNNCONV_FAULT=kName) builds
// one in. Without the flag nothing of them is compiled.
#pragma once

namespace knnconv::gpu {

enum class Fault {
  kNone,
  kFminf,           // cotangents clipped by fminf and fmaxf, which turn NaN into a number
  kClippedInputs,   // inputs clipped like cotangents
  kCastBoundary,    // the cast's first block of inputs taken for one of cotangents
  kDroppedBarrier,  // products of forward and dinput do not wait for what other threads stage
  kWrongResidue,    // pixels of a strided dense dinput take the taps of their neighbours in the line
};

#if defined(KNNCONV_FAULT)
inline constexpr Fault kFault = Fault::KNNCONV_FAULT;
#else
inline constexpr Fault kFault = Fault::kNone;
#endif

}  // namespace knnconv::gpu
