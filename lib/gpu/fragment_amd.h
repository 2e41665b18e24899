// Fragments by AMD's matrix instructions. Included by fragment.h on HIP. Compiled, and checked against a model of the
// instructions' registers (tests/gpu/emulation/amd_model.h); not run on AMD hardware.
//
//     v_mfma_f32_16x16x16_*   gfx90a, gfx94x, gfx950 (CDNA): waves of 64 lanes
//     v_wmma_f32_16x16x16_*   gfx11 (RDNA 3), gfx12 (RDNA 4): waves of 32 lanes
//
// A lane holds, of A, elements of row lane % 16; of B and of the accumulator, elements of column lane % 16. Which of
// the 16 along the other axis they are is the architecture's matter: a struct below.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpu/elements.h"

namespace knnconv::gpu {
namespace amd {

// A lane holds kElements neighbours along the depth of each operand, from Depth(lane) on. An accumulator's element e is
// of row Row(lane, e).
struct Gfx9 {
  static constexpr int kLanes = 64, kElements = 4;
  KNNCONV_HOST_DEVICE static constexpr int Depth(int lane) { return lane / 16 * 4; }
  KNNCONV_HOST_DEVICE static constexpr int Row(int lane, int element) { return lane / 16 * 4 + element; }
};

// Both halves of the wave hold all of the depth.
struct Gfx11 {
  static constexpr int kLanes = 32, kElements = 16;
  KNNCONV_HOST_DEVICE static constexpr int Depth(int) { return 0; }
  KNNCONV_HOST_DEVICE static constexpr int Row(int lane, int element) { return element * 2 + lane / 16; }
};

struct Gfx12 {
  static constexpr int kLanes = 32, kElements = 8;
  KNNCONV_HOST_DEVICE static constexpr int Depth(int lane) { return lane / 16 * 8; }
  KNNCONV_HOST_DEVICE static constexpr int Row(int lane, int element) { return lane / 16 * 8 + element; }
};

// The pass for the host needs some layout and uses none: nothing that a launch depends on may follow from kWarpSize.
#if defined(KNNCONV_AMD_MODEL)
using Layout = KNNCONV_AMD_MODEL;
#elif defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
using Layout = Gfx9;
#elif defined(__GFX12__)
using Layout = Gfx12;
#elif defined(__GFX11__) || !defined(__HIP_DEVICE_COMPILE__)
using Layout = Gfx11;
#else
#error "no matrix instructions are known for this AMD architecture: gfx90a, gfx94x, gfx950, gfx11 and gfx12 have them"
#endif

#if defined(__HIP_DEVICE_COMPILE__) && defined(__AMDGCN_WAVEFRONT_SIZE__)
static_assert(__AMDGCN_WAVEFRONT_SIZE__ == Layout::kLanes, "waves of 32 lanes on gfx11 and gfx12, of 64 on gfx9");
#endif

// Of an operand and of an accumulator, in a lane.
inline constexpr int kWords = Layout::kElements / 2, kSums = kFragment * kFragment / Layout::kLanes;
using Words = uint32_t[kWords];
using Sums = float[kSums];

}  // namespace amd

inline constexpr int kWarpSize = amd::Layout::kLanes;

template <typename T>
inline constexpr bool kHasTensorCores = true;

// Two elements a word, the one of lower depth in the low half.
template <typename T, Major kMajor>
struct FragmentA {
  amd::Words word;
};

template <typename T, Major kMajor>
struct FragmentB {
  amd::Words word;
};

struct Accumulator {
  amd::Sums value;
};

namespace amd {

KNNCONV_DEVICE int Lane() { return threadIdx.x % kWarpSize; }

// The caller's elements of a tile whose depth is contiguous, `pitch` elements from one row or column to the next.
template <typename T>
KNNCONV_DEVICE void LoadAlongDepth(Words& word, const T* tile, int pitch) {
  constexpr int kBytes = sizeof(Words);
  const void* from = tile + Lane() % 16 * pitch + Layout::Depth(Lane());
  memcpy(word, __builtin_assume_aligned(from, kBytes < 16 ? kBytes : 16), kBytes);
}

// The same of a tile whose depth goes in steps of `pitch`.
template <typename T>
KNNCONV_DEVICE void LoadAcrossDepth(Words& word, const T* tile, int pitch) {
  const T* from = tile + Layout::Depth(Lane()) * pitch + Lane() % 16;
#pragma unroll
  for (int i = 0; i < kWords; ++i, from += 2 * pitch) {
    uint16_t low, high;
    memcpy(&low, from, sizeof(low));
    memcpy(&high, from + pitch, sizeof(high));
    word[i] = low | static_cast<uint32_t>(high) << 16;
  }
}

#if defined(KNNCONV_AMD_MODEL)

// c += a @ b, by the model.
template <typename T>
void Multiply(Sums& c, const Words& a, const Words& b);

#else

using HalfVector = _Float16 __attribute__((ext_vector_type(Layout::kElements)));
using ShortVector = short __attribute__((ext_vector_type(Layout::kElements)));
using SumVector = float __attribute__((ext_vector_type(kSums)));

template <typename Vector>
KNNCONV_DEVICE Vector ToVector(const Words& word) {
  Vector vector;
  memcpy(&vector, word, sizeof(vector));
  return vector;
}

// c += a @ b
template <typename T>
KNNCONV_DEVICE void Multiply([[maybe_unused]] Sums& c, [[maybe_unused]] const Words& a,
                             [[maybe_unused]] const Words& b) {
#if defined(__HIP_DEVICE_COMPILE__)
  using Vector = std::conditional_t<std::is_same_v<T, Half>, HalfVector, ShortVector>;
  const Vector left = ToVector<Vector>(a), right = ToVector<Vector>(b);
  SumVector sums;
  memcpy(&sums, c, sizeof(sums));
  if constexpr (std::is_same_v<T, Half>) {
#if defined(__GFX12__)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(left, right, sums);
#elif defined(__GFX11__)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(left, right, sums);
#else
    sums = __builtin_amdgcn_mfma_f32_16x16x16f16(left, right, sums, 0, 0, 0);
#endif
  } else {
#if defined(__GFX12__)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(left, right, sums);
#elif defined(__GFX11__)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(left, right, sums);
#else
    sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(left, right, sums, 0, 0, 0);
#endif
  }
  memcpy(c, &sums, sizeof(sums));
#endif
}

#endif

}  // namespace amd

template <typename T, Major kMajor>
KNNCONV_DEVICE void LoadFragment(FragmentA<T, kMajor>& fragment, const T* tile, int pitch) {
  if constexpr (kMajor == Major::kRow) {
    amd::LoadAlongDepth(fragment.word, tile, pitch);
  } else {
    amd::LoadAcrossDepth(fragment.word, tile, pitch);
  }
}

template <typename T, Major kMajor>
KNNCONV_DEVICE void LoadFragment(FragmentB<T, kMajor>& fragment, const T* tile, int pitch) {
  if constexpr (kMajor == Major::kCol) {
    amd::LoadAlongDepth(fragment.word, tile, pitch);
  } else {
    amd::LoadAcrossDepth(fragment.word, tile, pitch);
  }
}

KNNCONV_DEVICE void FillAccumulator(Accumulator& acc, float value) {
#pragma unroll
  for (float& sum : acc.value) sum = value;
}

// acc += a @ b
template <typename T, Major kMajorA, Major kMajorB>
KNNCONV_DEVICE void MultiplyAdd(Accumulator& acc, const FragmentA<T, kMajorA>& a, const FragmentB<T, kMajorB>& b) {
  amd::Multiply<T>(acc.value, a.word, b.word);
}

// Writes row-major fp32.
KNNCONV_DEVICE void StoreAccumulator(float* tile, const Accumulator& acc, int pitch) {
  const int lane = amd::Lane();
#pragma unroll
  for (int i = 0; i < amd::kSums; ++i) {
    float value = acc.value[i];
#if defined(__HIP_DEVICE_COMPILE__)
    // Into a vector register: from accumulation registers of gfx90a, LLVM 19 makes paired stores that do not exist.
    asm("" : "+v"(value));
#endif
    tile[amd::Layout::Row(lane, i) * pitch + lane % 16] = value;
  }
}

}  // namespace knnconv::gpu

#if defined(KNNCONV_AMD_MODEL)
#include "amd_model.h"
#endif
