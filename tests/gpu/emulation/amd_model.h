// AMD's matrix instructions on the CPU, from the register tables of the instruction set guides: RDNA 3 (gfx11) and RDNA 4
// (gfx12), "Wave Matrix Multiply Accumulate"; CDNA 2 and 3 (gfx9), "Matrix core" and AMD's matrix instruction calculator.
// Written without fragment_amd.h's functions, so that they have something to be compared with. Included by it.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "gpu/plain/product.h"

namespace knnconv::gpu::amd {

// Where the instruction finds, in lane l's register v, the operand's two elements: of row (of A) or column (of B) `line`, at
// `depth` and the next. And which element of D register v of lane l is.
struct OperandPlace {
  int line, depth;
};
struct ResultPlace {
  int row, column;
};

template <typename Architecture>
struct Registers;

template <>
struct Registers<Gfx11> {
  static OperandPlace Operand(int l, int v) { return {l < 16 ? l : l - 16, 2 * v}; }  // the upper lanes repeat the lower ones
  static ResultPlace Result(int l, int v) { return l < 16 ? ResultPlace{2 * v, l} : ResultPlace{2 * v + 1, l - 16}; }
};

template <>
struct Registers<Gfx12> {
  static OperandPlace Operand(int l, int v) { return l < 16 ? OperandPlace{l, 2 * v} : OperandPlace{l - 16, 8 + 2 * v}; }
  static ResultPlace Result(int l, int v) { return l < 16 ? ResultPlace{v, l} : ResultPlace{8 + v, l - 16}; }
};

template <>
struct Registers<Gfx9> {
  static OperandPlace Operand(int l, int v) { return {l & 15, (l >> 4) * 4 + 2 * v}; }
  static ResultPlace Result(int l, int v) { return {(l >> 4) * 4 + v, l & 15}; }
};

// The registers of a warp's lanes, as they meet in the instruction.
struct WarpRegisters {
  uint32_t a[kWarpSize][kWords], b[kWarpSize][kWords];
  float c[kWarpSize][kSums];
};
inline WarpRegisters warp_registers[8];

template <typename T>
void Execute(WarpRegisters& warp) {
  using Table = Registers<Layout>;
  float a[16][16] = {}, b[16][16] = {}, c[16][16] = {};
  bool seen_a[16][16] = {}, seen_b[16][16] = {};
  const auto put = [](float& to, bool& seen, uint32_t bits) {
    const float value = ToFloat(T{static_cast<uint16_t>(bits)});
    if (seen && std::memcmp(&to, &value, sizeof(to)) != 0) {
      std::fprintf(stderr, "lanes that must hold the same element hold different ones\n");
      std::abort();
    }
    to = value;
    seen = true;
  };
  for (int l = 0; l < kWarpSize; ++l) {
    for (int v = 0; v < kWords; ++v) {
      const OperandPlace at = Table::Operand(l, v);
      for (int half = 0; half < 2; ++half) {
        const int k = at.depth + half;
        put(a[at.line][k], seen_a[at.line][k], warp.a[l][v] >> 16 * half);
        put(b[k][at.line], seen_b[k][at.line], warp.b[l][v] >> 16 * half);
      }
    }
    for (int v = 0; v < kSums; ++v) {
      const ResultPlace at = Table::Result(l, v);
      c[at.row][at.column] = warp.c[l][v];
    }
  }
  plain::AddProduct(c, a, b);
  for (int l = 0; l < kWarpSize; ++l) {
    for (int v = 0; v < kSums; ++v) {
      const ResultPlace at = Table::Result(l, v);
      warp.c[l][v] = c[at.row][at.column];
    }
  }
}

template <typename T>
void Multiply(Sums& c, const Words& a, const Words& b) {
  WarpRegisters& warp = warp_registers[threadIdx.x / kWarpSize];
  const int lane = Lane();
  std::memcpy(warp.a[lane], a, sizeof(a));
  std::memcpy(warp.b[lane], b, sizeof(b));
  std::memcpy(warp.c[lane], c, sizeof(c));
  plain::WaitWarp();
  if (lane == 0) Execute<T>(warp);
  plain::WaitWarp();
  std::memcpy(c, warp.c[lane], sizeof(c));
  plain::WaitWarp();
}

}  // namespace knnconv::gpu::amd
