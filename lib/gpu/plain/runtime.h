// The runtime's names and the words of kernels in plain C++, as vendor.h spells them: kernels run on the CPU, a thread
// block as fibers on one thread (block.h).
//
// For tests without a GPU. What they show: faults of indexing, tiling, rounding and barriers, under a sanitizer too.
// What they do not: the order of memory operations within a GPU, and tensor-core registers (fragment_amd.h has a
// model).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gpu/plain/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
// One block runs at a time.
#define __shared__ static
#define __launch_bounds__(...)
#define KNNCONV_LAUNCH_BOUNDS(threads, blocks)
#define KNNCONV_DYNAMIC_SHARED(name) char* const name = ::knnconv::gpu::plain::SharedMemory()
#define KNNCONV_PARAMETER

#define gpuError_t ::knnconv::gpu::plain::Error
#define gpuStream_t void*
#define gpuSuccess ::knnconv::gpu::plain::Error::kSuccess
#define gpuErrorNotSupported ::knnconv::gpu::plain::Error::kNotSupported
#define gpuErrorInvalidConfiguration ::knnconv::gpu::plain::Error::kInvalidConfiguration
#define gpuDeviceAttributeMultiprocessorCount ::knnconv::gpu::plain::Attribute::kMultiprocessors
#define gpuDeviceAttributeComputeCapabilityMajor ::knnconv::gpu::plain::Attribute::kMajor
#define gpuDeviceAttributeComputeCapabilityMinor ::knnconv::gpu::plain::Attribute::kMinor
#define gpuDeviceAttributeMaxSharedMemoryPerBlockOptin ::knnconv::gpu::plain::Attribute::kSharedBytes
#define gpuDeviceGetAttribute ::knnconv::gpu::plain::GetAttribute

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

using std::max;
using std::min;

inline const auto& threadIdx = knnconv::gpu::plain::thread_index;
inline const auto& blockIdx = knnconv::gpu::plain::block_index;
inline const auto& gridDim = knnconv::gpu::plain::grid_size;

inline void __syncthreads() { knnconv::gpu::plain::WaitBlock(); }
inline int __syncthreads_or(int predicate) { return knnconv::gpu::plain::AnyOfBlock(predicate != 0); }

// Fibers switch at barriers only, so a plain read and write is atomic.
template <typename T, typename U>
T atomicAdd(T* at, U value) {
  return std::exchange(*at, *at + value);
}
template <typename T, typename U>
T atomicMax(T* at, U value) {
  return std::exchange(*at, std::max<T>(*at, value));
}
template <typename T, typename U>
T atomicOr(T* at, U value) {
  return std::exchange(*at, *at | value);
}

inline int __popc(uint32_t value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<uint32_t>(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }

namespace knnconv::gpu::plain {

enum class Error { kSuccess, kNotSupported, kInvalidConfiguration };
enum class Attribute { kMultiprocessors, kMajor, kMinor, kSharedBytes };

// Two devices: number 0 has the shared memory of a recent NVIDIA GPU, number 1 that of AMD's and of the oldest NVIDIA
// ones.
inline constexpr int kSharedBytes[] = {227 << 10, 64 << 10};

inline Error GetAttribute(int* value, Attribute attribute, int device) {
  switch (attribute) {
    case Attribute::kMultiprocessors:
      *value = 4;
      break;
    case Attribute::kMajor:
      *value = 8;
      break;
    case Attribute::kMinor:
      *value = 0;
      break;
    case Attribute::kSharedBytes:
      *value = kSharedBytes[device];
      break;
  }
  return Error::kSuccess;
}

}  // namespace knnconv::gpu::plain
