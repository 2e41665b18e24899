// Fragments by ldmatrix and mma.sync. Included by fragment.h on CUDA.
//
// nvcuda::wmma has the same products, but its bf16 loads are generic 2- and 4-byte ones where ldmatrix takes one
// instruction for a tile in either order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr int kWarpSize = 32;

// Whether the architecture being compiled for multiplies tiles of T. bf16 came with sm_80: where it is missing, kernels
// compile to nothing and are never launched (Python asks the device first).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <typename T>
inline constexpr bool kHasTensorCores = std::is_same_v<T, Half>;
#else
template <typename T>
inline constexpr bool kHasTensorCores = true;
#endif

// Registers hold, of each 8x8 quarter, row lane / 4 (of A) or column lane / 4 (of B) and two neighbours along the
// depth. A's quarters: top left, bottom left, top right, bottom right. B's: columns 0-7 upper and lower depth, then
// 8-15.
template <typename T, Major kMajor>
struct FragmentA {
  uint32_t quarter[4];
};

template <typename T, Major kMajor>
struct FragmentB {
  uint32_t quarter[4];
};

// Columns 0-7, then 8-15: row lane / 4, columns lane % 4 * 2 and the next; then the row 8 below.
struct Accumulator {
  float value[2][4];
};

namespace internal {

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
template <bool kTranspose>
KNNCONV_DEVICE void LoadMatrices(uint32_t (&registers)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  }
}

template <typename T>
KNNCONV_DEVICE void Multiply16x8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
KNNCONV_DEVICE void Multiply16x8<Half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[2]), "r"(a[3]), "r"(b1));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

template <>
KNNCONV_DEVICE void Multiply16x8<BFloat>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace internal

template <typename T, Major kMajor>
KNNCONV_DEVICE void LoadFragment(FragmentA<T, kMajor>& fragment, const T* tile, int pitch) {
  const int lane = threadIdx.x % kWarpSize, matrix = lane / 8, inner = lane % 8;
  if constexpr (kMajor == Major::kRow) {
    internal::LoadMatrices<false>(fragment.quarter, tile + (inner + matrix % 2 * 8) * pitch + matrix / 2 * 8);
  } else {
    internal::LoadMatrices<true>(fragment.quarter, tile + (inner + matrix / 2 * 8) * pitch + matrix % 2 * 8);
  }
}

template <typename T, Major kMajor>
KNNCONV_DEVICE void LoadFragment(FragmentB<T, kMajor>& fragment, const T* tile, int pitch) {
  const int lane = threadIdx.x % kWarpSize, matrix = lane / 8, inner = lane % 8;
  if constexpr (kMajor == Major::kRow) {
    internal::LoadMatrices<true>(fragment.quarter, tile + (inner + matrix % 2 * 8) * pitch + matrix / 2 * 8);
  } else {
    internal::LoadMatrices<false>(fragment.quarter, tile + (inner + matrix / 2 * 8) * pitch + matrix % 2 * 8);
  }
}

KNNCONV_DEVICE void FillAccumulator(Accumulator& acc, float value) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc.value[half][i] = value;
  }
}

// acc += a @ b
template <typename T, Major kMajorA, Major kMajorB>
KNNCONV_DEVICE void MultiplyAdd(Accumulator& acc, const FragmentA<T, kMajorA>& a, const FragmentB<T, kMajorB>& b) {
  internal::Multiply16x8<T>(acc.value[0], a.quarter, b.quarter[0], b.quarter[1]);
  internal::Multiply16x8<T>(acc.value[1], a.quarter, b.quarter[2], b.quarter[3]);
}

// Writes row-major fp32; `tile` is 8-byte aligned and `pitch` even.
KNNCONV_DEVICE void StoreAccumulator(float* tile, const Accumulator& acc, int pitch) {
  const int lane = threadIdx.x % kWarpSize;
  float* at = tile + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<float2*>(at + half * 8) = make_float2(acc.value[half][0], acc.value[half][1]);
    *reinterpret_cast<float2*>(at + half * 8 + 8 * pitch) = make_float2(acc.value[half][2], acc.value[half][3]);
  }
}

}  // namespace knnconv::gpu
