#include "hopper/dweight_starts.h"

#include "gpu/lanes.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

// Steps of a member of a list.
KNNCONV_DEVICE int32_t StepsOf(const DweightTask& task, int32_t list, int32_t member) {
  const int32_t slots = task.table.slot_count, result = list / slots;
  const MemberTaps taps = TapsOf(task, task.groups.StartOf(result).first_row, member, list - result * slots);
  return static_cast<int32_t>(CeilDiv(int64_t{taps.count} * task.groups.entries, kStep));
}

// The sum of `value` over the threads before the caller, and over all.
KNNCONV_DEVICE int2 SumBefore(int32_t value, int32_t (&sums)[kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t sum = gpu::GroupSumUpTo(value);
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += sums[i];
    all += sums[i];
  }
  __syncthreads();
  return {before + sum - value, all};
}

// One block.
__global__ void __launch_bounds__(kThreads)
    StartsKernel(const KNNCONV_PARAMETER DweightTask task, int32_t* offsets, int32_t* starts) {
  __shared__ int32_t sums[kWarps];
  const int32_t members = task.groups.members, count = task.schedule.lists * members;
  int32_t start = 0;
  for (int32_t first = 0; first < count; first += kThreads) {
    const int32_t at = first + threadIdx.x, list = at / members;
    const int2 found = SumBefore(at < count ? StepsOf(task, list, at - list * members) : 0, sums);
    if (at < count) starts[at] = start + found.x;
    if (at < count && at == list * members) offsets[2 * list] = start + found.x;
    start += found.y;
  }
  if (threadIdx.x == 0) starts[count] = offsets[2 * task.schedule.lists] = start;
}

}  // namespace

gpu::Status RunDweightStarts(const gpu::LaunchSite& site, const DweightTask& task) {
  return gpu::Launch<StartsKernel, 0>(site, 1, kThreads, task, const_cast<int32_t*>(task.schedule.offsets),
                                      const_cast<int32_t*>(task.starts));
}

}  // namespace knnconv::hopper
