#include "gpu/dweight_reduce.h"

#include "gpu/arithmetic.h"

namespace knnconv::gpu {
namespace {

// Results of one kind: `size` elements a group, each the sum of `parts` rows of `partials` [groups, parts, size].
struct PartialSums {
  const float* partials;
  int64_t parts, size;
  void* out;
  Element type;
};

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // parts that a thread loads at a time

// Threads that share one sum, by its number of parts.
KNNCONV_HOST_DEVICE int Lanes(int64_t parts) { return parts <= 8 ? 1 : parts <= 32 ? 4 : parts <= 128 ? 8 : 32; }

// Neighbouring sums of one thread.
template <int kWidth>
struct alignas(4 * kWidth) Sums {
  float value[kWidth];

  KNNCONV_DEVICE void Add(const Sums& other) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] += other.value[i];
  }
};

template <typename T, int kWidth>
KNNCONV_DEVICE void Store(void* out, int64_t at, const Sums<kWidth>& sums) {
  struct alignas(sizeof(T) * kWidth) Rounded {
    T value[kWidth];
  } rounded;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) rounded.value[i] = FromFloat<T>(sums.value[i]);
  static_cast<Rounded*>(out)[at] = rounded;
}

// A block has kThreads / lanes times kWidth elements. A lane sums every lanes-th part, and then the lanes' sums are
// added in order.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    ReduceKernel(PartialSums weight, PartialSums bias, int64_t weight_blocks, int64_t bias_blocks) {
  __shared__ Sums<kWidth> shared[kThreads];
  const int64_t group = blockIdx.x / (weight_blocks + bias_blocks);
  int64_t block = blockIdx.x % (weight_blocks + bias_blocks);
  const bool is_weight = block < weight_blocks;
  if (!is_weight) block -= weight_blocks;
  const PartialSums from = is_weight ? weight : bias;

  const int lanes = Lanes(from.parts), width = kThreads / lanes;
  const int column = threadIdx.x % width, lane = threadIdx.x / width;
  const int64_t size = from.size / kWidth, at = block * width + column;
  Sums<kWidth> sums = {};
  if (at < size) {
    const Sums<kWidth>* partial = reinterpret_cast<const Sums<kWidth>*>(from.partials) + group * from.parts * size + at;
    for (int64_t first = lane; first < from.parts; first += kBatch * lanes) {
      Sums<kWidth> loaded[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * lanes < from.parts) loaded[i] = partial[(first + i * lanes) * size];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) sums.Add(loaded[i]);
    }
  }
  shared[threadIdx.x] = sums;
  __syncthreads();
  if (lane != 0 || at >= size) return;
  for (int other = 1; other < lanes; ++other) sums.Add(shared[other * width + column]);
  const int64_t to = group * size + at;
  if (from.type == Element::kF32) Store<float>(from.out, to, sums);
  if (from.type == Element::kF16) Store<Half>(from.out, to, sums);
  if (from.type == Element::kBF16) Store<BFloat>(from.out, to, sums);
}

template <int kWidth>
Status LaunchReduce(const LaunchSite& site, int64_t groups, const PartialSums& weight, const PartialSums& bias) {
  const auto blocks = [](const PartialSums& sums) {
    const int64_t width = kThreads / Lanes(sums.parts) * kWidth;
    return (sums.size + width - 1) / width;
  };
  const int64_t weight_blocks = blocks(weight), bias_blocks = blocks(bias);
  return Launch<ReduceKernel<kWidth>, 0>(site, groups * (weight_blocks + bias_blocks), kThreads, weight, bias,
                                         weight_blocks, bias_blocks);
}

bool TakesVectors(const PartialSums& sums) {
  return sums.size % 4 == 0 && IsAligned(sums.partials) && IsAligned(sums.out);
}

}  // namespace

Status RunReduce(const LaunchSite& site, const Dweight& dweight, int64_t slices, int64_t bias_parts) {
  const int64_t groups = dweight.shapes.groups.count();
  const int64_t size = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  const PartialSums weight{dweight.partials, slices, size, dweight.dw, dweight.dw_type};
  const PartialSums bias{dweight.partials + WeightPartials(dweight, slices), slices * bias_parts,
                         dweight.db != nullptr ? dweight.columns : 0, dweight.db, dweight.db_type};
  if (TakesVectors(weight) && TakesVectors(bias)) return LaunchReduce<4>(site, groups, weight, bias);
  return LaunchReduce<1>(site, groups, weight, bias);
}

}  // namespace knnconv::gpu
