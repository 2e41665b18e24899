// Stands in for lib/gpu/fragment.h where kernels run on the CPU. A fragment remembers where its tile lies and is read when
// it is multiplied, which is before the next barrier; an accumulator holds a lane's share of a tile, two whole half rows.
#pragma once

#include "gpu/elements.h"
#include "gpu/launch.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr int kFragment = 16;
inline constexpr int kWarpSize = 32;

template <typename T>
inline constexpr bool kHasTensorCores = true;

enum class Major { kRow, kCol };

template <typename T, Major kMajor>
struct Fragment {
  const T* tile;
  int pitch;

  float at(int row, int column) const {
    return ToFloat(tile[kMajor == Major::kRow ? row * pitch + column : column * pitch + row]);
  }
};

template <typename T, Major kMajor>
struct FragmentA : Fragment<T, kMajor> {};
template <typename T, Major kMajor>
struct FragmentB : Fragment<T, kMajor> {};

// Row lane / 2, columns lane % 2 * 8 and the next seven.
struct Accumulator {
  float value[8];
};

template <typename AnyFragment, typename T>
void LoadFragment(AnyFragment& fragment, const T* tile, int pitch) {
  fragment.tile = tile;
  fragment.pitch = pitch;
}

inline void FillAccumulator(Accumulator& acc, float value) { std::fill_n(acc.value, 8, value); }

template <typename A, typename B>
void MultiplyAdd(Accumulator& acc, const A& a, const B& b) {
  const int lane = threadIdx.x % kWarpSize;
  for (int i = 0; i < 8; ++i) {
    for (int k = 0; k < kFragment; ++k) acc.value[i] += a.at(lane / 2, k) * b.at(k, lane % 2 * 8 + i);
  }
}

inline void StoreAccumulator(float* tile, const Accumulator& acc, int pitch) {
  const int lane = threadIdx.x % kWarpSize;
  std::copy_n(acc.value, 8, tile + lane / 2 * pitch + lane % 2 * 8);
}

}  // namespace knnconv::gpu
