// What the checks of rules share: devices, the kernels that rules may name, and how a check fails.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "check.h"
#include "gpu/device.h"
#include "gpu/groups.h"

namespace knnconv::gpu::check {

inline constexpr Device kH200{132, 90, 227 << 10}, kA100{108, 80, 163 << 10};
inline constexpr Device kT4{40, 75, 64 << 10}, kL4{58, 89, 99 << 10};

enum Kernel { kNone, kTiles, kHaloPatches, kStems, kHopperTiles, kHopperPatches, kStemSums, kHopperStemSums };

template <typename... Plans>
Kernel KernelOf(const std::variant<Plans...>& decision) {
  return static_cast<Kernel>(decision.index() + 1);
}

inline void Require(const std::string& name, bool right) {
  if (right) return;
  ++failures;
  std::printf("%s: wrong\n", name.c_str());
}

inline GroupShape Shape(const std::vector<int64_t>& sizes) {
  GroupShape shape;
  for (int64_t size : sizes) shape.size[shape.rank++] = size;
  return shape;
}

// An address that is a multiple of `bytes`, and of nothing more.
inline void* At(int bytes) { return reinterpret_cast<void*>(uintptr_t{4096} + bytes); }

}  // namespace knnconv::gpu::check
