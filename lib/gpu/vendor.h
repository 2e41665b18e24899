// One source for CUDA, HIP and plain C++: the runtime's names, the words of kernels and the 16-bit element types,
// spelled once.
//
// Kernels and launchers use gpu* and KNNCONV_* names only. A name is added here, for all three, when a source first
// needs it. Plain C++ (KNNCONV_PLAIN) runs kernels on the CPU, for tests: gpu/plain/.
#pragma once

// Defined where kernels are compiled; the host compiler, which compiles handlers, does not see what is theirs alone.
#if defined(__CUDACC__) || defined(__HIPCC__) || defined(KNNCONV_PLAIN)
#define KNNCONV_KERNELS 1
#endif

#if defined(KNNCONV_PLAIN)

#include "gpu/elements_soft.h"
#include "gpu/plain/runtime.h"

#elif defined(__HIP_PLATFORM_AMD__)

#include <hip/hip_runtime.h>

#include "gpu/elements_soft.h"

#define gpuDeviceAttributeMultiprocessorCount hipDeviceAttributeMultiprocessorCount
#define gpuDeviceAttributeComputeCapabilityMajor hipDeviceAttributeComputeCapabilityMajor
#define gpuDeviceAttributeComputeCapabilityMinor hipDeviceAttributeComputeCapabilityMinor
#define gpuDeviceAttributeMaxSharedMemoryPerBlockOptin hipDeviceAttributeMaxSharedMemoryPerBlock
#define gpuDeviceGetAttribute hipDeviceGetAttribute
#define gpuError_t hipError_t
#define gpuErrorNotSupported hipErrorNotSupported
#define gpuErrorInvalidConfiguration hipErrorInvalidConfiguration
#define gpuFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define gpuFuncSetAttribute hipFuncSetAttribute
#define gpuGetErrorString hipGetErrorString
#define gpuLaunchKernel hipLaunchKernel
#define gpuStream_t hipStream_t
#define gpuSuccess hipSuccess

// The second argument of HIP's bounds counts waves, not blocks; registers are left to the compiler.
#define KNNCONV_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads)
#define KNNCONV_DYNAMIC_SHARED(name) extern __shared__ __attribute__((aligned(128))) char name[]
#define KNNCONV_PARAMETER

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define gpuDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define gpuDeviceAttributeComputeCapabilityMajor cudaDevAttrComputeCapabilityMajor
#define gpuDeviceAttributeComputeCapabilityMinor cudaDevAttrComputeCapabilityMinor
#define gpuDeviceAttributeMaxSharedMemoryPerBlockOptin cudaDevAttrMaxSharedMemoryPerBlockOptin
#define gpuDeviceGetAttribute cudaDeviceGetAttribute
#define gpuError_t cudaError_t
#define gpuErrorNotSupported cudaErrorNotSupported
#define gpuErrorInvalidConfiguration cudaErrorInvalidConfiguration
#define gpuFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define gpuFuncSetAttribute cudaFuncSetAttribute
#define gpuGetErrorString cudaGetErrorString
#define gpuLaunchKernel cudaLaunchKernel
#define gpuStream_t cudaStream_t
#define gpuSuccess cudaSuccess

// The most threads of a block, and blocks that are to fit on a multiprocessor.
#define KNNCONV_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
// A block's shared memory, of the size given at launch.
#define KNNCONV_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
// A kernel parameter that stays where the launch put it, so that indexing it at run time needs no copy.
#define KNNCONV_PARAMETER __grid_constant__

namespace knnconv::gpu {
using Half = __half;
using BFloat = __nv_bfloat16;
}  // namespace knnconv::gpu

#endif

#define KNNCONV_HOST_DEVICE __host__ __device__ __forceinline__
#define KNNCONV_DEVICE __device__ __forceinline__

// Before a loop that is to stay one, for code size. Host compilers do not know it.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define KNNCONV_ROLLED _Pragma("unroll 1")
#else
#define KNNCONV_ROLLED
#endif

#if defined(KNNCONV_KERNELS)
namespace knnconv::gpu {

// Reads what no thread writes while the kernel runs.
template <typename T>
KNNCONV_DEVICE T ReadOnly(const T* at) {
#if defined(__CUDACC__)
  return __ldg(at);
#else
  return *at;
#endif
}

}  // namespace knnconv::gpu
#endif
