#include "gpu/plain/block.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "gpu/plain/fiber.h"

namespace knnconv::gpu::plain {

Index thread_index, block_index, grid_size;
Schedule schedule;

namespace {

struct Barrier {
  int arrived = 0, generation = 0;
};

struct Copy {
  char* to;
  const char* from;
};

using Copies = std::deque<std::vector<Copy>>;  // in batches, of which the last is open

struct Thread {
  Fiber fiber;
  bool done = false;
  const Barrier* waits_for = nullptr;  // until its generation is another
  int generation = 0;
  Copies batches;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Block {
  std::vector<Thread>& threads;
  std::unique_ptr<char, Free> shared;
  Barrier all;
  std::vector<Barrier> warps;
  std::vector<uint32_t> values;  // what threads show to each other
  const std::function<void()>* body;
  Fiber scheduler;
};

Block* block = nullptr;

Thread& Current() { return block->threads[thread_index.x]; }

void Wait(Barrier& barrier, int count) {
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  Thread& thread = Current();
  thread.waits_for = &barrier;
  thread.generation = barrier.generation;
  thread.fiber.SwitchTo(block->scheduler);
}

void RunThread() {
  (*block->body)();
  Current().done = true;
  Current().fiber.Finish(block->scheduler);
}

void Perform(const Copy& copy) {
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, 16);
  } else {
    std::memcpy(copy.to, copy.from, 16);
  }
}

// Runs the threads that wait for nothing, in turn, until none is left.
void RunBlock() {
  const int count = static_cast<int>(block->threads.size());
  for (int left = count; left > 0;) {
    bool moved = false;
    for (int i = 0; i < count; ++i) {
      const int at = schedule.backward ? count - 1 - i : i;
      Thread& thread = block->threads[at];
      if (thread.done) continue;
      if (thread.waits_for != nullptr && thread.waits_for->generation == thread.generation) continue;
      thread.waits_for = nullptr;
      thread_index.x = static_cast<uint32_t>(at);
      block->scheduler.SwitchTo(thread.fiber);
      moved = true;
      left -= thread.done;
    }
    if (!moved) {
      std::fprintf(stderr, "block %u: threads wait at barriers that others never reach\n", block_index.x);
      std::abort();
    }
  }
}

}  // namespace

void RunGrid(int64_t blocks, int threads, int shared_bytes, const std::function<void()>& body) {
  static std::map<int, std::vector<Thread>> kept;  // by their number: stacks are costly to make
  std::vector<Thread>& fibers = kept.try_emplace(threads, threads).first->second;
  Block here{fibers, nullptr, {}, std::vector<Barrier>((threads + kWarpThreads - 1) / kWarpThreads),
             std::vector<uint32_t>(threads), &body, {}};
  block = &here;
  grid_size.x = static_cast<uint32_t>(blocks);
  for (int64_t i = 0; i < blocks; ++i) {
    block_index.x = static_cast<uint32_t>(i);
    void* shared = nullptr;
    if (shared_bytes > 0 && posix_memalign(&shared, 128, shared_bytes) != 0) std::abort();
    here.shared.reset(static_cast<char*>(shared));
    if (shared_bytes > 0) std::memset(shared, 0xff, shared_bytes);
    for (Thread& thread : fibers) {
      thread.fiber.Start(RunThread);
      thread.done = false;
      thread.batches = Copies(1);
    }
    RunBlock();
  }
  block = nullptr;
}

char* SharedMemory() { return block->shared.get(); }

void WaitBlock() { Wait(block->all, static_cast<int>(block->threads.size())); }
void WaitWarp() { Wait(block->warps[thread_index.x / kWarpThreads], kWarpThreads); }

bool AnyOfBlock(bool mine) {
  block->values[thread_index.x] = mine;
  WaitBlock();
  bool any = false;
  for (uint32_t value : block->values) any |= value != 0;
  WaitBlock();
  return any;
}

uint32_t FromLane(uint32_t mine, int lane) {
  block->values[thread_index.x] = mine;
  WaitWarp();
  const uint32_t value = block->values[thread_index.x / kWarpThreads * kWarpThreads + lane];
  WaitWarp();
  return value;
}

uint64_t Ballot(bool mine) {
  block->values[thread_index.x] = mine;
  WaitWarp();
  uint64_t votes = 0;
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    votes |= uint64_t{block->values[thread_index.x / kWarpThreads * kWarpThreads + lane]} << lane;
  }
  WaitWarp();
  return votes;
}

void StartCopy(void* to, const void* from) {
  const Copy copy{static_cast<char*>(to), static_cast<const char*>(from)};
  if (schedule.late_copies) {
    Current().batches.back().push_back(copy);
  } else {
    Perform(copy);
  }
}

void CommitCopies() { Current().batches.emplace_back(); }

void WaitForCopies(int pending) {
  auto& batches = Current().batches;
  for (; static_cast<int>(batches.size()) - 1 > pending; batches.pop_front()) {
    for (const Copy& copy : batches.front()) Perform(copy);
  }
}

}  // namespace knnconv::gpu::plain
