// Hopper's instructions for moving tiles, one function each: barriers in shared memory, copies of tensor boxes (TMA),
// fences, and the registers of a warpgroup.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/dependent_launch.h"
#include "gpu/vendor.h"

namespace knnconv::hopper {

inline constexpr uint32_t kAllLanes = 0xffffffffu;  // of a warp

KNNCONV_DEVICE uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Arrivals of a warp at a barrier (ArriveAsWarp). racecheck does not see that __syncwarp orders the lanes' accesses
// before the arrival of one of them (tests/gpu/hopper/warp_arrival.cu): in builds for it every lane arrives.
#ifdef KNNCONV_LANES_ARRIVE
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

// A barrier in shared memory, in phase 0 after Init. A phase ends when `arrivals` threads have arrived and all bytes
// that were announced have been written.
struct alignas(8) Barrier {
  uint64_t state;

  KNNCONV_DEVICE void Init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(this)), "r"(arrivals));
  }

  KNNCONV_DEVICE void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(this)) : "memory");
  }

  // Arrives for the warp: what its lanes read and wrote before is done when the phase ends.
  KNNCONV_DEVICE void ArriveAsWarp() {
    if constexpr (kWarpArrivals == 32) {
      Arrive();
    } else {
      __syncwarp();
      if (threadIdx.x % 32 == 0) Arrive();
    }
  }

  // Arrives and announces bytes that copies will write.
  KNNCONV_DEVICE void ArriveExpecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(this)), "r"(bytes)
                 : "memory");
  }

  // Arrives when the caller's cp.async copies so far have landed; the arrival is one of those given to Init.
  KNNCONV_DEVICE void ArriveAfterCopies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(this)) : "memory");
  }

  // Waits for the end of a phase of this parity. The first phase has parity 0; until it ends, a wait for 1 passes at
  // once.
  KNNCONV_DEVICE void Wait(uint32_t parity) {
    Poll([&] { return Test(parity); });
  }

  // The same, where other blocks of the cluster write or arrive; what they did before is visible after.
  KNNCONV_DEVICE void WaitForPeers(uint32_t parity) {
    Poll([&] { return TestForPeers(parity); });
  }

 private:
  template <typename Ready>
  KNNCONV_DEVICE static void Poll(const Ready& ready) {
#ifdef KNNCONV_HOPPER_POLLS  // of test builds: a barrier that nobody completes stops the kernel instead of the device
    for (int polls = 0; polls < KNNCONV_HOPPER_POLLS; ++polls) {
      if (ready()) return;
    }
    __trap();
#else
    while (!ready()) {
    }
#endif
  }

  KNNCONV_DEVICE bool TestForPeers(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(this)), "r"(parity)
        : "memory");
    return done != 0;
  }

  KNNCONV_DEVICE bool Test(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(this)), "r"(parity)
        : "memory");
    return done != 0;
  }
};

// Makes Init visible to the copy engine; the block's threads still have to synchronise.
KNNCONV_DEVICE void FenceBarrierInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Orders the caller's ordinary writes to shared memory before reads by the copy engine and by tensor cores.
KNNCONV_DEVICE void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

KNNCONV_DEVICE void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box of `map` at the coordinates (fastest dimension first) to `to`; `barrier` counts its bytes. What lies
// outside the tensor becomes zeros, and counts.
KNNCONV_DEVICE void LoadBox(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1)
      : "memory");
}

KNNCONV_DEVICE void LoadBox(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

KNNCONV_DEVICE void LoadBox(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

KNNCONV_DEVICE void LoadBox(void* to, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3,
                            int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Loads `bytes`, a multiple of 16, from one address to another, both multiples of 16; `barrier` counts them.
KNNCONV_DEVICE void LoadBytes(void* to, const void* from, int bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   SharedAddress(to)),
               "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
               : "memory");
}

// Loads the pixels that follow (n, h, w) in the map's bounding box, line by line and image by image, each moved by
// (offset_h, offset_w), which are at least 0 and below 256.
KNNCONV_DEVICE void LoadPixels(void* to, const CUtensorMap* map, Barrier* barrier, int channel, int w, int h, int n,
                               int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(channel), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h))
      : "memory");
}

// Stores the box at `from` to the coordinates; what lies outside the tensor is left out. The caller's latest stores
// make a batch when it commits them. The caller's own writes to the box need FenceAsyncProxy first.
KNNCONV_DEVICE void StoreBox(const CUtensorMap* map, const void* from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(SharedAddress(from)), "r"(c0), "r"(c1)
               : "memory");
}
KNNCONV_DEVICE void StoreBox(const CUtensorMap* map, const void* from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(SharedAddress(from)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
KNNCONV_DEVICE void StoreBox(const CUtensorMap* map, const void* from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(SharedAddress(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
KNNCONV_DEVICE void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the caller's last kPending batches of stores have read their boxes.
template <int kPending>
KNNCONV_DEVICE void WaitForStoresToRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Stores four matrices of 8 x 8 16-bit elements to shared memory: lane l gives the address of row l % 8 of matrix l / 8
// (16 bytes), and holds the elements 2 * (l % 4) + {0, 1} of row l / 4 of matrix i in pairs[i].
KNNCONV_DEVICE void StoreMatrices(void* row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(row)),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// Loads such matrices transposed: lane l gives the address of row l % 8 of matrix l / 8, and receives the elements
// l / 4 of the rows 2 * (l % 4) + {0, 1} of matrix i in pairs[i].
KNNCONV_DEVICE void LoadTransposed(uint32_t row, uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(row)
               : "memory");
}

// Copies 16 bytes to shared memory at address `to`, or writes zeros there where `exists` is false and reads nothing,
// wherever `from` points.
KNNCONV_DEVICE void CopyChunk(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

// Reads 16 bytes of shared memory at address `from`.
KNNCONV_DEVICE uint4 LoadShared(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// Copies 4 bytes to shared memory.
KNNCONV_DEVICE void CopyWord(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from) : "memory");
}

// The same for the first `bytes` of 16, from 1 to 16; the others become zeros and are not read.
KNNCONV_DEVICE void CopyPart(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The address of a row, in one instruction: left to itself, the compiler multiplies 64 bits by 64.
KNNCONV_DEVICE const char* RowAt(const char* rows, int32_t row, int32_t row_bytes) {
  const char* at;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(row_bytes), "l"(rows));
  return at;
}

// All threads of `threads`, a multiple of 32, meet at barrier `id` (1 to 15; 0 is __syncthreads).
KNNCONV_DEVICE void SyncThreads(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at barrier `id` without waiting; others of `threads` wait there.
KNNCONV_DEVICE void ArriveAt(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

using gpu::LaunchDependents, gpu::WaitForPrerequisites;

// Every warp of a warpgroup gives registers away, or takes them; kCount is a multiple of 8.
template <int kCount>
KNNCONV_DEVICE void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
KNNCONV_DEVICE void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace knnconv::hopper
