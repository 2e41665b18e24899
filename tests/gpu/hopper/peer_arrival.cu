// Two blocks of a cluster talk as those that share a tile do (lib/hopper/tap_split.h): one stores a number to the other
// and arrives at a barrier there (.release.cluster); the other waits for that (.acquire.cluster), reads the number and
// answers; the next number follows when all of the answer has come, whose address follows from what has been read. This
// program checks that each number is read as it was stored. The racecheck of compute-sanitizer reports hazards all the
// same, and a write to a block that may have ended, though that one waits for it. With "meet" the blocks meet at the
// cluster's barrier in place of their own, and it finds none; with "arrive" an answer is an arrival alone.
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I lib tests/gpu/hopper/peer_arrival.cu -o peer_arrival
#include <cstdio>
#include <string>

#include "cuda_check.h"
#include "hopper/cluster.h"
#include "hopper/ptx.h"

namespace {

using namespace knnconv::hopper;

constexpr int kRounds = 8, kLanes = 32;

enum class Order { kAnswers, kArrivals, kMeetings };

// wrong = values that are not what was stored.
__global__ void __cluster_dims__(2) Talk(int* wrong, Order order) {
  __shared__ uint32_t number;
  __shared__ float4 answer[kLanes];
  __shared__ Barrier told, answered;
  const bool asks = ClusterRank() == 0;
  const int other = asks ? 1 : 0, lane = threadIdx.x;
  if (lane == 0) {
    told.Init(1);
    answered.Init(order == Order::kArrivals ? kLanes : 1);
    FenceBarrierInit();
  }
  __syncthreads();
  SyncCluster();
  for (uint32_t round = 0; round < kRounds; ++round) {
    if (asks && lane == 0) {
      if (order == Order::kAnswers) answered.ArriveExpecting(sizeof(answer));
      StorePeer(PeerAddress(&number, other), round + 1);
      if (order != Order::kMeetings) ArriveAtPeer(PeerAddress(&told, other));
    }
    __syncwarp();
    if (order == Order::kMeetings) SyncCluster();
    if (!asks) {
      if (order != Order::kMeetings) told.WaitForPeers(round % 2);
      const uint32_t read = number;
      if (read != round + 1) atomicAdd(wrong, 1);
      if (order == Order::kArrivals) ArriveAtPeer(PeerAddress(&answered, other));
      if (order == Order::kAnswers) {
        const uint32_t to = PeerAddress(&answer[(lane + read) % kLanes], other);
        StorePeerCounted(to, read, lane, 0, 0, PeerAddress(&answered, other));
      }
    } else if (order != Order::kMeetings) {
      answered.WaitForPeers(round % 2);
      const float4 line = answer[(lane + round + 1) % kLanes];
      if (order == Order::kAnswers && (line.x != round + 1 || line.y != lane)) atomicAdd(wrong, 1);
      __syncwarp();
    }
    if (order == Order::kMeetings) SyncCluster();
  }
}

}  // namespace

int main(int arguments, char** argument) {
  const std::string word = arguments > 1 ? argument[1] : "";
  int* wrong;
  CHECK(cudaMallocManaged(&wrong, sizeof(int)));
  *wrong = 0;
  Talk<<<2, kLanes>>>(wrong, word == "meet" ? Order::kMeetings : word == "arrive" ? Order::kArrivals : Order::kAnswers);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::printf("%d wrong\n", *wrong);
  return *wrong != 0;
}
