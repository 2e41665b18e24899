// Hopper's instructions for thread blocks of one cluster, which reach each other's shared memory, one function each.
//
// An address of another block is a 32-bit one in the window of the cluster, from PeerAddress.
#pragma once

#include <cstdint>

#include "hopper/ptx.h"

namespace knnconv::hopper {

// The block's number in its cluster.
KNNCONV_DEVICE int ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// All threads of all blocks of the cluster meet; what they wrote to shared memory before is visible after.
KNNCONV_DEVICE void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where `pointer`, in the caller's shared memory, lies in that of block `rank`.
KNNCONV_DEVICE uint32_t PeerAddress(const void* pointer, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(SharedAddress(pointer)), "r"(rank));
  return address;
}

KNNCONV_DEVICE void StorePeer(uint32_t to, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

// Arrives at another block's barrier; the caller's stores before are visible to who waits there with WaitForPeers.
KNNCONV_DEVICE void ArriveAtPeer(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Stores 16 bytes to another block, whose barrier counts them as it counts a copy's.
KNNCONV_DEVICE void StorePeerCounted(uint32_t to, float a, float b, float c, float d, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}

}  // namespace knnconv::hopper
