// One source for CUDA and HIP: the runtime's names and the 16-bit element types, spelled once.
//
// Kernels and launchers use gpu* names only. A name is added here when a source first needs it.
#pragma once

#if defined(__HIP_PLATFORM_AMD__)

#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#define gpuDeviceAttributeMultiprocessorCount hipDeviceAttributeMultiprocessorCount
#define gpuDeviceAttributeComputeCapabilityMajor hipDeviceAttributeComputeCapabilityMajor
#define gpuDeviceAttributeMaxSharedMemoryPerBlockOptin hipDeviceAttributeMaxSharedMemoryPerBlock
#define gpuDeviceGetAttribute hipDeviceGetAttribute
#define gpuError_t hipError_t
#define gpuErrorNotSupported hipErrorNotSupported
#define gpuErrorInvalidConfiguration hipErrorInvalidConfiguration
#define gpuFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define gpuFuncSetAttribute hipFuncSetAttribute
#define gpuGetErrorString hipGetErrorString
#define gpuLaunchKernel hipLaunchKernel
#define gpuMemsetAsync hipMemsetAsync
#define gpuStream_t hipStream_t
#define gpuSuccess hipSuccess

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define gpuDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define gpuDeviceAttributeComputeCapabilityMajor cudaDevAttrComputeCapabilityMajor
#define gpuDeviceAttributeMaxSharedMemoryPerBlockOptin cudaDevAttrMaxSharedMemoryPerBlockOptin
#define gpuDeviceGetAttribute cudaDeviceGetAttribute
#define gpuError_t cudaError_t
#define gpuErrorNotSupported cudaErrorNotSupported
#define gpuErrorInvalidConfiguration cudaErrorInvalidConfiguration
#define gpuFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define gpuFuncSetAttribute cudaFuncSetAttribute
#define gpuGetErrorString cudaGetErrorString
#define gpuLaunchKernel cudaLaunchKernel
#define gpuMemsetAsync cudaMemsetAsync
#define gpuStream_t cudaStream_t
#define gpuSuccess cudaSuccess

#endif

#define KNNCONV_HOST_DEVICE __host__ __device__ __forceinline__
#define KNNCONV_DEVICE __device__ __forceinline__

// Before a loop that is to stay one, for code size. Host compilers do not know it.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define KNNCONV_ROLLED _Pragma("unroll 1")
#else
#define KNNCONV_ROLLED
#endif

// A kernel parameter that stays where the launch put it, so that indexing it at run time needs no copy.
#if defined(__HIP_PLATFORM_AMD__)
#define KNNCONV_PARAMETER
#else
#define KNNCONV_PARAMETER __grid_constant__
#endif

namespace knnconv::gpu {

#if defined(__HIP_PLATFORM_AMD__)
using Half = __half;
using BFloat = __hip_bfloat16;
#else
using Half = __half;
using BFloat = __nv_bfloat16;
#endif

}  // namespace knnconv::gpu
