#include "hopper/halo_dweight_reduce.h"

#include "gpu/arithmetic.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {
namespace {

constexpr int kWarps = 16;  // of a block: each adds every kWarps-th slice
constexpr int kBatch = 9;   // slices that a thread loads at a time: all, with a block on each multiprocessor of an H200
constexpr int kBiasColumns = 32;

KNNCONV_DEVICE void Add(float4* sum, const float4& other) {
  sum->x += other.x;
  sum->y += other.y;
  sum->z += other.z;
  sum->w += other.w;
}
KNNCONV_DEVICE void Add(float* sum, float other) { *sum += other; }

// The sum over slices of from[slice * pitch], in the warps' order. Valid in the first warp. By all threads of a block.
template <typename Value>
KNNCONV_DEVICE Value AddSlices(const Value* from, int64_t pitch, int slices, bool exists, Value* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Value sum = {};
  WaitForPrerequisites();
  for (int first = warp; first < slices && exists; first += kBatch * kWarps) {
    Value loaded[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kWarps < slices) loaded[i] = from[(first + i * kWarps) * pitch];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) Add(&sum, loaded[i]);
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0) return sum;
#pragma unroll
  for (int other = 1; other < kWarps; ++other) Add(&sum, shared[other * 32 + lane]);
  return sum;
}

// A block has 32 threads' sums of one unit: of two rows of dw, two columns each.
KNNCONV_DEVICE void ReduceWeight(const gpu::Dweight& dweight, const HaloDweightPlan& plan, int block,
                                 float4* shared) {
  const int warps = plan.part_threads / 32, unit = block / warps % plan.units, tile = block / warps / plan.units;
  const int lane = threadIdx.x % 32, thread = block % warps * 32 + lane;
  const int64_t pitch = int64_t{plan.units} * plan.part_threads;
  const float4* const from = reinterpret_cast<const float4*>(dweight.partials) + tile * pitch +
                             unit * plan.part_threads + thread;
  const float4 sum = AddSlices(from, pitch * plan.column_tiles, plan.slices, true, shared);
  if (threadIdx.x >= 32) return;
  const int group = unit / plan.group_units, across = group / plan.pieces;
  const int in_group = unit % plan.group_units * 8 + lane % 4 * 2, tap = in_group >> plan.tap_elements_log2;
  const int down = group % plan.pieces * plan.taps_of_group + tap;
  const int channel = in_group - (tap << plan.tap_elements_log2);
  if (down >= plan.taps_down) return;
  const int row = (down * plan.taps_across + across) * dweight.channels + channel;
  const int column = tile * kDweightColumns + thread / 32 * 16 + lane / 4;
  const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = int64_t{row + i % 2} * dweight.columns + column + i / 2 * 8;
    if (column + i / 2 * 8 < dweight.columns && channel + i % 2 < dweight.channels) gpu::StoreElement(dweight.dw, dweight.dw_type, at, value[i]);
  }
}

// A block has kBiasColumns columns.
KNNCONV_DEVICE void ReduceBias(const gpu::Dweight& dweight, const HaloDweightPlan& plan, int block, float* shared) {
  const int column = block * kBiasColumns + static_cast<int>(threadIdx.x) % kBiasColumns;
  const bool exists = column < dweight.columns;
  const float sum = AddSlices(plan.bias_partials + column, dweight.columns, plan.slices, exists, shared);
  if (threadIdx.x < kBiasColumns && exists) gpu::StoreElement(dweight.db, dweight.db_type, column, sum);
}

__global__ void __launch_bounds__(kWarps * 32)
    ReduceKernel(const __grid_constant__ gpu::Dweight dweight, const __grid_constant__ HaloDweightPlan plan,
                 int weight_blocks) {
  DN_CLOCKS DN_STAMP(0);
  __shared__ float4 shared[kWarps * 32];
#ifdef DN_CLOCK
  WaitForPrerequisites();
#endif
  DN_STAMP(1);
  const int block = static_cast<int>(blockIdx.x);
  if (block < weight_blocks) {
    ReduceWeight(dweight, plan, block, shared);
  } else {
    ReduceBias(dweight, plan, block - weight_blocks, reinterpret_cast<float*>(shared));
  }
#ifdef DN_CLOCK
  dn_clock[2] = dn_clock[3] = dn_clock[4] = dn_clock[1];
#endif
  DN_STAMP(5);
  DN_PRINT("reduce wait, 0, 0, 0, rest");
}

}  // namespace

gpu::Status RunHaloReduce(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const HaloDweightPlan& plan) {
  KNNCONV_GPU_RETURN_IF_ERROR(
      (gpu::Launch<ReduceKernel, 0>(site, 0, kWarps * 32, dweight, plan, /*weight_blocks=*/0)));
  if (site.prepare) return {};
  const int weight_blocks = static_cast<int>(plan.column_tiles) * plan.units * (plan.part_threads / 32);
  const int bias_blocks = dweight.db == nullptr ? 0 : static_cast<int>(gpu::CeilDiv(dweight.columns, kBiasColumns));
  // Its blocks may start while the last ones of the kernel before still run.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(weight_blocks + bias_blocks));
  config.blockDim = dim3(kWarps * 32);
  config.stream = site.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  KNNCONV_GPU_CHECK(cudaLaunchKernelEx(&config, ReduceKernel, dweight, plan, weight_blocks));
  return {};
}

}  // namespace knnconv::hopper
DN_DUMP(DumpReduce)
