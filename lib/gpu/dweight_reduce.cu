#include "gpu/dweight_reduce.h"

namespace knnconv::gpu {
namespace {

constexpr int kThreads = 256;

// Threads that share one sum, by its number of parts.
KNNCONV_HOST_DEVICE int Lanes(int64_t parts) { return parts <= 8 ? 1 : parts <= 32 ? 4 : parts <= 128 ? 8 : 32; }

KNNCONV_DEVICE void Store(Element type, void* out, int64_t at, float value) {
  if (type == Element::kF32) static_cast<float*>(out)[at] = value;
  if (type == Element::kF16) static_cast<Half*>(out)[at] = FromFloat<Half>(value);
  if (type == Element::kBF16) static_cast<BFloat*>(out)[at] = FromFloat<BFloat>(value);
}

// A block has kThreads / lanes elements. A lane sums every lanes-th part, and then the lanes' sums are added in order.
__global__ void __launch_bounds__(kThreads)
    ReduceKernel(PartialSums weight, PartialSums bias, int64_t weight_blocks, int64_t bias_blocks) {
  __shared__ float sums[kThreads];
  const int64_t group = blockIdx.x / (weight_blocks + bias_blocks);
  int64_t block = blockIdx.x % (weight_blocks + bias_blocks);
  const bool is_weight = block < weight_blocks;
  if (!is_weight) block -= weight_blocks;
  const PartialSums from = is_weight ? weight : bias;

  const int lanes = Lanes(from.parts), width = kThreads / lanes;
  const int column = threadIdx.x % width, lane = threadIdx.x / width;
  const int64_t element = block * width + column;
  float sum = 0;
  if (element < from.size) {
    const float* partial = from.partials + (group * from.parts) * from.size + element;
#pragma unroll 8
    for (int64_t part = lane; part < from.parts; part += lanes) sum += partial[part * from.size];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || element >= from.size) return;
  for (int other = 1; other < lanes; ++other) sum += sums[other * width + column];
  Store(from.type, from.out, group * from.size + element, sum);
}

}  // namespace

Status RunReduce(const LaunchSite& site, int64_t groups, const PartialSums& weight, const PartialSums& bias) {
  const auto blocks = [](const PartialSums& sums) {
    const int64_t width = kThreads / Lanes(sums.parts);
    return (sums.size + width - 1) / width;
  };
  const int64_t weight_blocks = blocks(weight), bias_blocks = blocks(bias);
  return Launch<ReduceKernel, 0>(site, groups * (weight_blocks + bias_blocks), kThreads, weight, bias, weight_blocks,
                                 bias_blocks);
}

}  // namespace knnconv::gpu
