// Fragments in plain C++. Included by fragment.h where kernels run on the CPU.
//
// A warp's first lane holds the whole of each fragment, as fp32; the others hold nothing. So a kernel that forgets a
// barrier between lanes that write a tile and those that multiply it reads what was there before.
#pragma once

#include "gpu/elements.h"
#include "gpu/plain/product.h"

namespace knnconv::gpu {

inline constexpr int kWarpSize = plain::kWarpThreads;

template <typename T>
inline constexpr bool kHasTensorCores = true;

template <typename T, Major kMajor>
struct FragmentA {
  float value[kFragment][kFragment];
};

template <typename T, Major kMajor>
struct FragmentB {
  float value[kFragment][kFragment];
};

struct Accumulator {
  float value[kFragment][kFragment];
};

namespace internal {

inline bool IsLeader() { return threadIdx.x % kWarpSize == 0; }

template <Major kMajor, typename T>
void LoadTile(float (&value)[kFragment][kFragment], const T* tile, int pitch) {
  if (!IsLeader()) return;
  for (int i = 0; i < kFragment; ++i) {
    for (int j = 0; j < kFragment; ++j) {
      value[i][j] = ToFloat(tile[kMajor == Major::kRow ? i * pitch + j : j * pitch + i]);
    }
  }
}

}  // namespace internal

template <typename T, Major kMajor>
void LoadFragment(FragmentA<T, kMajor>& fragment, const T* tile, int pitch) {
  internal::LoadTile<kMajor>(fragment.value, tile, pitch);
}

template <typename T, Major kMajor>
void LoadFragment(FragmentB<T, kMajor>& fragment, const T* tile, int pitch) {
  internal::LoadTile<kMajor>(fragment.value, tile, pitch);
}

inline void FillAccumulator(Accumulator& acc, float value) {
  for (auto& row : acc.value) std::fill_n(row, kFragment, value);
}

template <typename T, Major kMajorA, Major kMajorB>
void MultiplyAdd(Accumulator& acc, const FragmentA<T, kMajorA>& a, const FragmentB<T, kMajorB>& b) {
  if (internal::IsLeader()) plain::AddProduct(acc.value, a.value, b.value);
}

inline void StoreAccumulator(float* tile, const Accumulator& acc, int pitch) {
  if (!internal::IsLeader()) return;
  for (int i = 0; i < kFragment; ++i) std::copy_n(acc.value[i], kFragment, tile + i * pitch);
}

}  // namespace knnconv::gpu
