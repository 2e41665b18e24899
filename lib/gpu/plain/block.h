// A thread block on the CPU: its threads are fibers that switch at barriers and warp operations; blocks run one after
// another.
#pragma once

#include <cstdint>
#include <functional>

namespace knnconv::gpu::plain {

// As on AMD's gfx9 where KNNCONV_PLAIN_WARP is 64.
#if defined(KNNCONV_PLAIN_WARP)
inline constexpr int kWarpThreads = KNNCONV_PLAIN_WARP;
#else
inline constexpr int kWarpThreads = 32;
#endif

struct Index {
  uint32_t x;
};

extern Index thread_index, block_index, grid_size;

// What a GPU leaves open: which thread goes first between two barriers, and when an asynchronous copy happens. A kernel
// must be right either way.
struct Schedule {
  bool backward = false;     // the last thread first
  bool late_copies = false;  // copies happen when they are waited for, not when they are started
};

extern Schedule schedule;

// Runs `body` as every thread of every block. Shared memory is of exactly `shared_bytes`, and at first holds NaNs.
void RunGrid(int64_t blocks, int threads, int shared_bytes, const std::function<void()>& body);

// Of the running block.
char* SharedMemory();

void WaitBlock();
void WaitWarp();

// Whether some thread of the block says so.
bool AnyOfBlock(bool mine);

// What thread `lane` of the caller's warp passes in. All threads of the warp call.
uint32_t FromLane(uint32_t mine, int lane);

// Bit i: what thread i of the caller's warp says.
uint64_t Ballot(bool mine);

// A copy of the calling thread: 16 bytes, or zeros where `from` is null.
void StartCopy(void* to, const void* from);
void CommitCopies();
void WaitForCopies(int pending);

}  // namespace knnconv::gpu::plain
