// One warp writes lines in shared memory and another reads them, in turns, kept apart by barriers at which one lane
// arrives for its warp, after __syncwarp. This program checks that each line is read as it was written. The racecheck
// of compute-sanitizer reports hazards all the same; with an argument, every lane arrives and it finds none. Builds of
// checks for racecheck therefore define KNNCONV_LANES_ARRIVE (lib/hopper/ptx.h).
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I lib tests/gpu/hopper/warp_arrival.cu -o warp_arrival
#include <cstdio>

#include "cuda_check.h"
#include "hopper/ptx.h"

namespace {

using knnconv::hopper::Barrier;

constexpr int kRounds = 8, kLanes = 32;

__device__ void Arrive(Barrier& barrier, bool lanes) {
  if (lanes) {
    barrier.Arrive();
    return;
  }
  __syncwarp();
  if (threadIdx.x % kLanes == 0) barrier.Arrive();
}

// wrong = values that are not what was written.
__global__ void PassLines(int* wrong, bool lanes) {
  __shared__ int line[kLanes];
  __shared__ Barrier full, empty;
  const int lane = threadIdx.x % kLanes;
  if (threadIdx.x == 0) {
    full.Init(lanes ? kLanes : 1);
    empty.Init(lanes ? kLanes : 1);
    knnconv::hopper::FenceBarrierInit();
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    if (threadIdx.x < kLanes) {
      empty.Wait((round & 1) ^ 1);
      line[lane] = round * kLanes + lane;
      Arrive(full, lanes);
    } else {
      const int other = kLanes - 1 - lane;
      full.Wait(round & 1);
      if (line[other] != round * kLanes + other) atomicAdd(wrong, 1);
      Arrive(empty, lanes);
    }
  }
}

}  // namespace

int main(int arguments, char**) {
  int* wrong;
  CHECK(cudaMallocManaged(&wrong, sizeof(int)));
  *wrong = 0;
  PassLines<<<1, 2 * kLanes>>>(wrong, arguments > 1);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::printf("%d wrong\n", *wrong);
  return *wrong != 0;
}
