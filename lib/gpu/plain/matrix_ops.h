// The warp's matrix instructions where kernels run on the CPU: the same registers in the same lanes. Included by
// gpu/matrix_ops.h.
#pragma once

#include <array>

#include "gpu/elements.h"
#include "gpu/plain/block.h"

namespace knnconv::gpu {
namespace plain {

// What each lane of the caller's warp shows; the reference lives until the warp's next exchange.
template <typename Value>
const std::array<Value, 32>& ShowWarp(const Value& value) {
  static std::array<std::array<Value, 32>, 32> warps;
  auto& warp = warps[threadIdx.x / 32];
  warp[threadIdx.x % 32] = value;
  WaitWarp();
  return warp;
}

template <typename T>
T ElementOf16(uint32_t pair, int which) {
  const uint16_t bits = static_cast<uint16_t>(pair >> (16 * which));
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace plain

template <bool kTranspose>
void LoadMatrices(uint32_t (&registers)[4], const void* row) {
  const auto& rows = plain::ShowWarp<const uint16_t*>(static_cast<const uint16_t*>(row));
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint16_t* const* of = rows.data() + matrix * 8;
    const uint16_t low = kTranspose ? of[2 * t][g] : of[g][2 * t];
    const uint16_t high = kTranspose ? of[2 * t + 1][g] : of[g][2 * t + 1];
    registers[matrix] = low | uint32_t{high} << 16;
  }
  plain::WaitWarp();
}

template <typename T>
void Multiply16x8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  using Registers = std::array<uint32_t, 6>;
  const auto& lanes = plain::ShowWarp<Registers>({a[0], a[1], a[2], a[3], b0, b1});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, half = i / 2, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const Registers& left = lanes[row * 4 + k % 8 / 2];
      const Registers& right = lanes[column * 4 + k % 8 / 2];
      c[i] += ToFloat(plain::ElementOf16<T>(left[half + k / 8 * 2], k % 2)) *
              ToFloat(plain::ElementOf16<T>(right[4 + k / 8], k % 2));
    }
  }
  plain::WaitWarp();
}

}  // namespace knnconv::gpu
