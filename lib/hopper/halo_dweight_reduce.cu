#include "hopper/halo_dweight_reduce.h"

#include "gpu/dependent_launch.h"
#include "gpu/elements.h"
#include "hopper/float4_sums.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {
namespace {

constexpr int kWarps = 16;  // of a block: each adds every kWarps-th slice
constexpr int kBatch = 9;   // slices that a thread loads at a time: all, with a block on each multiprocessor of an H200

// A block has 32 threads' sums of one unit: of two rows of dw (or db, and nothing), two columns each.
__global__ void __launch_bounds__(kWarps * 32)
    ReduceKernel(const __grid_constant__ gpu::Dweight dweight, const __grid_constant__ HaloDweightPlan plan) {
  __shared__ float4 shared[kWarps * 32];
  const int block = static_cast<int>(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warps = plan.part_threads / 32, unit = block / warps % plan.units;
  const int part_of_slice = block / warps / plan.units, kind = part_of_slice % plan.kinds;
  const int tile = part_of_slice / plan.kinds;
  const int thread = block % warps * 32 + lane, slices = plan.slices;
  const int group = kind * plan.groups_of_kind + unit / plan.group_units, column_of_taps = group / plan.pieces;
  const int in_group = unit % plan.group_units * 8 + lane % 4 * 2, tap = in_group >> plan.tap_elements_log2;
  const int beside = tap & ((1 << plan.taps_beside_log2) - 1);
  const int down = group % plan.pieces * plan.taps_of_group + (tap >> plan.taps_beside_log2);
  const int across = (column_of_taps << plan.taps_beside_log2) + beside;
  const int channel = in_group - (tap << plan.tap_elements_log2);
  const int row = (down * plan.taps_across + across) * dweight.channels + channel;
  const int column = tile * kDweightColumns + thread / 32 * 16 + lane / 4;
  const int64_t part = int64_t{plan.units} * plan.part_threads, pitch = part * plan.column_tiles * plan.kinds;
  const float4* const from = reinterpret_cast<const float4*>(dweight.partials) + part_of_slice * part +
                             unit * plan.part_threads + thread;
  float4 sum = {};
  WaitForPrerequisites();
  for (int first = warp; first < slices; first += kBatch * kWarps) {
    float4 loaded[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kWarps < slices) loaded[i] = from[(first + i * kWarps) * pitch];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) Add(&sum, loaded[i]);
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other) Add(&sum, shared[other * 32 + lane]);
  const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int own_column = column + i / 2 * 8;
    if (own_column >= dweight.columns) continue;
    const int unit_row = unit * 8 + lane % 4 * 2 + i % 2;
    if (unit_row == plan.bias_row) {
      if (kind == 0 && dweight.db != nullptr) gpu::StoreElement(dweight.db, dweight.db_type, own_column, value[i]);
    } else if (unit_row < plan.weight_rows && down < plan.taps_down && across < plan.taps_across &&
               channel + i % 2 < dweight.channels) {
      gpu::StoreElement(dweight.dw, dweight.dw_type, int64_t{row + i % 2} * dweight.columns + own_column, value[i]);
    }
  }
}

}  // namespace

gpu::Status RunHaloReduce(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const HaloDweightPlan& plan) {
  const int64_t blocks = int64_t{plan.column_tiles} * plan.kinds * plan.units * (plan.part_threads / 32);
  return gpu::LaunchDependent<ReduceKernel>(site, blocks, kWarps * 32, dweight, plan);
}

}  // namespace knnconv::hopper
