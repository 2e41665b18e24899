// What the checks of kernels on the CPU share: random operands, comparison, and both schedules of threads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu/elements.h"
#include "gpu/kernel_choice.h"
#include "gpu/launch.h"
#include "gpu/status.h"

namespace knnconv::gpu::check {

inline std::mt19937 random_bits(7);
inline int failures = 0;

inline int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }

// Multiples of 1/16 in [-1, 1]: their products' sums are exact in fp32, so that results must be equal to the bit.
template <typename T>
std::vector<T> Values(size_t count) {
  std::vector<T> values(count);
  for (T& value : values) value = FromFloat<T>(static_cast<float>(Pick(-16, 16)) / 16);
  return values;
}

template <typename T>
std::vector<float> ToFloats(const std::vector<T>& values) {
  std::vector<float> floats(values.size());
  for (size_t i = 0; i < values.size(); ++i) floats[i] = ToFloat(values[i]);
  return floats;
}

// What kernels are to write, and nothing else: NaN everywhere at first.
inline std::vector<float> Unwritten(size_t count) {
  return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
}

// Device 0 in its natural order of threads, with copies as they are started, and backward with copies as late as may be;
// device 1, which has little shared memory, backward.
struct Setting {
  int device;
  plain::Schedule schedule;
};
inline constexpr Setting kSettings[] = {{0, {false, false}}, {0, {true, true}}, {1, {true, false}}};

// Whether the device with little shared memory refused a tile that was asked for.
inline bool LacksRoom(const Setting& setting, const TileChoice& wanted, const Status& status) {
  return setting.device == 1 && wanted.rows > 0 && status.code == gpuErrorInvalidConfiguration;
}

// The same values an element further on: where they start, 16 bytes cannot be read at once.
template <typename Values>
Values Further(const Values& values) {
  Values moved(1);
  moved.insert(moved.end(), values.begin(), values.end());
  return moved;
}

// The values behind the first `skipped`.
template <typename Values>
Values Behind(const Values& values, int skipped) {
  return Values(values.begin() + skipped, values.end());
}

// Counts values that differ and tells of a case where there are some.
inline void Compare(const std::string& name, const std::vector<float>& got, const std::vector<double>& expected) {
  size_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += !(static_cast<double>(got[i]) == expected[i]);
  if (wrong == 0) return;
  ++failures;
  std::printf("%s: %zu of %zu wrong\n", name.c_str(), wrong, expected.size());
}

inline void RequireOk(const std::string& name, const Status& status) {
  if (status.ok()) return;
  ++failures;
  std::printf("%s: %s:%d: %s\n", name.c_str(), status.file, status.line, status.call);
}

inline int Result() {
  std::printf("%d failures\n", failures);
  return failures != 0;
}

}  // namespace knnconv::gpu::check
