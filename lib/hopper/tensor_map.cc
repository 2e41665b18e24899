// The driver's encoders are reached through the runtime: the module needs no libcuda to link or to load.
#include "hopper/tensor_map.h"

#include <cuda_runtime.h>

#include <atomic>

namespace knnconv::hopper {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
using EncodeIm2col = decltype(&cuTensorMapEncodeIm2col);

constexpr int kVersion = 12000;  // of CUDA, that of the encoders' signatures

gpu::Status FindEntry(const char* name, std::atomic<void*>* entry) {
  if (entry->load(std::memory_order_acquire) != nullptr) return {};
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  KNNCONV_GPU_CHECK(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) return {cudaErrorSymbolNotFound, __FILE__, __LINE__, name};
  entry->store(found, std::memory_order_release);
  return {};
}

gpu::Status FindTiled(EncodeTiled* encode) {
  static std::atomic<void*> entry{nullptr};
  KNNCONV_GPU_RETURN_IF_ERROR(FindEntry("cuTensorMapEncodeTiled", &entry));
  *encode = reinterpret_cast<EncodeTiled>(entry.load(std::memory_order_relaxed));
  return {};
}

gpu::Status FindIm2col(EncodeIm2col* encode) {
  static std::atomic<void*> entry{nullptr};
  KNNCONV_GPU_RETURN_IF_ERROR(FindEntry("cuTensorMapEncodeIm2col", &entry));
  *encode = reinterpret_cast<EncodeIm2col>(entry.load(std::memory_order_relaxed));
  return {};
}

CUtensorMapDataType TypeOf(gpu::Element type) {
  switch (type) {
    case gpu::Element::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case gpu::Element::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
}

CUtensorMapSwizzle SwizzleOf(int bytes) {
  switch (bytes) {
    case 0:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
}

gpu::Status ToStatus(CUresult result, int line, const char* call) {
  if (result == CUDA_SUCCESS) return {};
  return {cudaErrorInvalidValue, __FILE__, line, call};
}

}  // namespace

gpu::Status PrepareTensorMaps() {
  EncodeTiled tiled;
  EncodeIm2col im2col;
  KNNCONV_GPU_RETURN_IF_ERROR(FindTiled(&tiled));
  return FindIm2col(&im2col);
}

gpu::Status Encode(const BoxMap& spec, CUtensorMap* map) {
  EncodeTiled encode;
  KNNCONV_GPU_RETURN_IF_ERROR(FindTiled(&encode));
  constexpr cuuint32_t kSteps[kMaxMapRank] = {1, 1, 1, 1, 1};
  cuuint64_t size[kMaxMapRank], stride[kMaxMapRank];
  for (int i = 0; i < spec.rank; ++i) size[i] = spec.size[i];
  for (int i = 0; i + 1 < spec.rank; ++i) stride[i] = spec.stride[i];
  const CUresult result = encode(map, TypeOf(spec.type), spec.rank, const_cast<void*>(spec.address), size, stride,
                                 spec.box, kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, SwizzleOf(spec.swizzle),
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return ToStatus(result, __LINE__, "cuTensorMapEncodeTiled");
}

gpu::Status Encode(const PixelMap& spec, CUtensorMap* map) {
  EncodeIm2col encode;
  KNNCONV_GPU_RETURN_IF_ERROR(FindIm2col(&encode));
  const auto channels = static_cast<cuuint64_t>(spec.channels), width = static_cast<cuuint64_t>(spec.width);
  const auto height = static_cast<cuuint64_t>(spec.height), images = static_cast<cuuint64_t>(spec.images);
  const cuuint64_t size[] = {channels, width, height, images};
  const cuuint64_t stride[] = {2 * channels, 2 * channels * width, 2 * channels * width * height};
  const cuuint32_t step[] = {1, static_cast<cuuint32_t>(spec.step[0]), static_cast<cuuint32_t>(spec.step[1]), 1};
  constexpr int kChannels = 64;
  const CUresult result = encode(map, TypeOf(spec.type), 4, const_cast<void*>(spec.address), size, stride, spec.lower,
                                 spec.upper, kChannels, spec.pixels, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return ToStatus(result, __LINE__, "cuTensorMapEncodeIm2col");
}

}  // namespace knnconv::hopper
