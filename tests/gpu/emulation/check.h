// What the checks of kernels share: operands in memory that kernels reach, comparison, and the ways in which the CPU runs
// a block's threads. Compiled for a GPU (FORM=cuda of the Makefile) the same checks run its kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
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

#if defined(KNNCONV_PLAIN)

template <typename T>
using Array = std::vector<T>;

// Device 0 in its natural order of threads, with copies as they are started, and backward with copies as late as may be;
// device 1, which has little shared memory, backward.
struct Setting {
  int device;
  bool backward, late;
};
inline constexpr Setting kSettings[] = {{0, false, false}, {0, true, true}, {1, true, false}};

inline void Use(const Setting& setting) { plain::schedule = {setting.backward, setting.late}; }

template <typename T>
T Narrow(float value) {
  return FromFloat<T>(value);
}
template <typename T>
float Widen(T value) {
  return ToFloat(value);
}

inline const char* WhyNot(const Status&) { return "refused"; }
inline Status Finish(const Status& status) { return status; }

#else

// Memory of host and device.
template <typename T>
struct Managed {
  using value_type = T;

  Managed() = default;
  template <typename U>
  Managed(const Managed<U>&) {}

  T* allocate(size_t count) {
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, count * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { cudaFree(memory); }

  friend bool operator==(const Managed&, const Managed&) { return true; }
  friend bool operator!=(const Managed&, const Managed&) { return false; }
};
template <typename T>
using Array = std::vector<T, Managed<T>>;

struct Setting {
  int device;
  bool backward, late;
};
inline constexpr Setting kSettings[] = {{0, false, false}};

inline void Use(const Setting&) {}

template <typename T>
T Narrow(float value) {
  return static_cast<T>(value);
}
template <typename T>
float Widen(T value) {
  return static_cast<float>(value);
}

inline const char* WhyNot(const Status& status) { return gpuGetErrorString(status.code); }

// The launcher's status, or that of the kernels when they are done.
inline Status Finish(const Status& status) {
  if (!status.ok()) return status;
  KNNCONV_GPU_CHECK(cudaDeviceSynchronize());
  return {};
}

#endif

// Multiples of 1/16 in [-1, 1]: their products' sums are exact in fp32, so that results must be equal to the bit.
template <typename T>
Array<T> Values(size_t count) {
  Array<T> values(count);
  for (T& value : values) value = Narrow<T>(static_cast<float>(Pick(-16, 16)) / 16);
  return values;
}

template <typename T>
Array<float> ToFloats(const Array<T>& values) {
  Array<float> floats(values.size());
  for (size_t i = 0; i < values.size(); ++i) floats[i] = Widen(values[i]);
  return floats;
}

// What kernels are to write, and nothing else: NaN everywhere at first.
inline Array<float> Unwritten(size_t count) { return Array<float>(count, std::numeric_limits<float>::quiet_NaN()); }

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
inline void Compare(const std::string& name, const Array<float>& got, const std::vector<double>& expected) {
  size_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += !(static_cast<double>(got[i]) == expected[i]);
  if (wrong == 0) return;
  ++failures;
  std::printf("%s: %zu of %zu wrong\n", name.c_str(), wrong, expected.size());
}

// Waits for the launch that returned `launched`.
inline void RequireOk(const std::string& name, const Status& launched) {
  const Status status = Finish(launched);
  if (status.ok()) return;
  ++failures;
  std::printf("%s: %s:%d: %s: %s\n", name.c_str(), status.file, status.line, status.call, WhyNot(status));
}

// Channels that fill vectors, tiles and steps, and that do not.
inline int PickChannels() {
  constexpr int kSome[] = {1, 2, 3, 5, 7, 8, 9, 16, 17, 24, 32, 33, 40, 63, 64, 65};
  return kSome[Pick(0, sizeof(kSome) / sizeof(int) - 1)];
}

// A dense convolution of any small shape.
struct Window {
  std::array<int, 2> size, kernel, stride, padding, dilation, out;
};

inline Window PickWindow() {
  Window window;
  for (int d = 0; d < 2; ++d) {
    window.size[d] = Pick(1, 20);
    window.kernel[d] = Pick(1, 5);
    window.stride[d] = Pick(1, 3);
    window.dilation[d] = Pick(1, 3);
    window.padding[d] = Pick(-1, window.kernel[d]);
    const int reach = (window.kernel[d] - 1) * window.dilation[d] + 1;
    const int padded = window.size[d] + window.padding[d] + Pick(0, window.kernel[d]);
    window.out[d] = std::max(1, (padded - reach) / window.stride[d] + 1);
  }
  return window;
}

// How many random shapes a check is asked for, besides its own: its first argument.
inline int RandomShapes(int argc, char** argv) { return argc > 1 ? std::atoi(argv[1]) : 0; }

inline int Result() {
  std::printf("%d failures\n", failures);
  return failures != 0;
}

}  // namespace knnconv::gpu::check
