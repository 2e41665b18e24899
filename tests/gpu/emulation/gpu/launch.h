// Stands in for lib/gpu/launch.h where kernels run on the CPU: a block's threads are fibers that switch at barriers and
// warp operations, blocks run one after another. It finds faults of indexing, tiling and barriers, under a sanitizer too;
// lane layouts of tensor-core fragments are not tested (fragment.h beside this).
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/status.h"
#include "gpu/vendor.h"

// A source with static shared arrays is compiled with KNNCONV_SHARED=static, one with the dynamic array with none.
#undef __shared__
#define __shared__ KNNCONV_SHARED
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef gpuDeviceGetAttribute
#define gpuDeviceGetAttribute ::knnconv::gpu::emulation::GetAttribute

using std::max;
using std::min;

inline uint3 threadIdx;
inline dim3 blockIdx, gridDim;

namespace knnconv::gpu {

inline constexpr int kSharedBytes = 228 << 10;
alignas(128) inline char shared[kSharedBytes];  // what kernels declare as extern

struct LaunchSite {
  gpuStream_t stream;
  int device;
  bool prepare;
};

namespace emulation {

inline gpuError_t GetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == gpuDeviceAttributeMultiprocessorCount ? 4 : kSharedBytes;
  return gpuSuccess;
}

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 << 10);
  bool done = false;
};

// The fibers of a block that arrive wait for each other.
struct Barrier {
  int arrived = 0, generation = 0;
};

struct Block {
  std::vector<Fiber> fibers;
  Barrier all;
  std::vector<Barrier> warps;
  std::vector<uint32_t> values;  // what a thread shows to its warp or block
  ucontext_t scheduler;
  unsigned current = 0;
  std::function<void()> body;
};

inline Block* block = nullptr;

inline void Yield() { swapcontext(&block->fibers[block->current].context, &block->scheduler); }

inline void Wait(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) Yield();
}

inline void WaitBlock() { Wait(block->all, static_cast<int>(block->fibers.size())); }
inline void WaitWarp() { Wait(block->warps[threadIdx.x / 32], 32); }

inline void Enter() {
  block->body();
  block->fibers[block->current].done = true;
  Yield();
}

inline void RunBlock(int threads, const std::function<void()>& body) {
  Block here;
  here.fibers.resize(threads);
  here.warps.resize((threads + 31) / 32);
  here.values.resize(threads);
  here.body = body;
  block = &here;
  for (Fiber& fiber : here.fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, Enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (here.current = 0; here.current < here.fibers.size(); ++here.current) {
      if (here.fibers[here.current].done) continue;
      threadIdx = {here.current, 0, 0};
      swapcontext(&here.scheduler, &here.fibers[here.current].context);
      left = true;
    }
  }
  block = nullptr;
}

// The values that the threads of the caller's warp pass in, or of its block.
inline std::vector<uint32_t> Exchange(uint32_t value, bool whole_block) {
  auto wait = [&] { whole_block ? WaitBlock() : WaitWarp(); };
  block->values[threadIdx.x] = value;
  wait();
  const auto first = block->values.begin() + (whole_block ? 0 : threadIdx.x / 32 * 32);
  const std::vector<uint32_t> values(first, whole_block ? block->values.end() : first + 32);
  wait();
  return values;
}

}  // namespace emulation

template <auto kKernel, typename... Params>
Status LaunchSized(const LaunchSite& site, int64_t blocks, int threads, int shared_bytes, int, Params... params) {
  if (shared_bytes > kSharedBytes) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "shared memory"};
  if (site.prepare) return {};
  gridDim = dim3(static_cast<unsigned>(blocks));
  for (int64_t i = 0; i < blocks; ++i) {
    std::memset(shared, 0xff, sizeof(shared));  // what is read before it is written is NaN
    blockIdx = dim3(static_cast<unsigned>(i));
    emulation::RunBlock(threads, [&] { kKernel(params...); });
  }
  return {};
}

template <auto kKernel, int kBytes, typename... Params>
Status Launch(const LaunchSite& site, int64_t blocks, int threads, Params... params) {
  static_assert(kBytes <= kSharedBytes);
  return LaunchSized<kKernel>(site, blocks, threads, kBytes, kBytes, params...);
}

}  // namespace knnconv::gpu

inline void __syncthreads() { knnconv::gpu::emulation::WaitBlock(); }
inline void __syncwarp() { knnconv::gpu::emulation::WaitWarp(); }

inline int __syncthreads_or(int predicate) {
  const auto values = knnconv::gpu::emulation::Exchange(predicate != 0, true);
  return std::any_of(values.begin(), values.end(), [](uint32_t v) { return v != 0; });
}

inline unsigned __ballot_sync(unsigned, int predicate) {
  const auto values = knnconv::gpu::emulation::Exchange(predicate != 0, false);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) ballot |= values[lane] << lane;
  return ballot;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

template <typename T>
T ShuffleFrom(T value, const std::function<int(int)>& source) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = knnconv::gpu::emulation::Exchange(bits, false)[source(threadIdx.x % 32)];
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  return ShuffleFrom(value, [&](int me) { return me / width * width + lane % width; });
}

template <typename T>
T __shfl_up_sync(unsigned, T value, int delta, int width = 32) {
  return ShuffleFrom(value, [&](int me) { return me % width < delta ? me : me - delta; });
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return ShuffleFrom(value, [&](int me) { return me ^ mask; });
}

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

template <typename T>
T __ldg(const T* at) {
  return *at;
}

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
