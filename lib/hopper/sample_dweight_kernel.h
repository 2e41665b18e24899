// Weight gradients over a table without slots, where samples of x lie in shared memory: three slots of dw over a
// stretch of its depth.
//
//     dw[slot, c, o] = sum over samples b and nodes m:  x[b, indices[m, slot], c] * g[b, m, o]
//
//     A [64 channels, 16 nodes] = lines of the sample, by the table   (shared memory -> registers, transposed)
//     B [16 nodes, 64 columns] = g                                    (shared memory, boxes of 64 nodes, as they lie)
//
// A block copies a sample once, where tiles of dweight_gather.h copy a line for each tap. Each of its three warpgroups
// has a slot. A lane gives the address of a tap's line, of which a warp reads 16 channels of 16 nodes at a time. What
// bounds it: a warpgroup that reads a box's lines multiplies nothing meanwhile, and lines meet in banks; the start; and
// writing and reading the parts, which a second kernel adds (dweight_reduce.h).
#pragma once

#include <cstdint>

#include "gpu/dependent_launch.h"
#include "hopper/device.h"
#include "hopper/sample_dweight_bias.h"
#include "hopper/sample_dweight_products.h"
#include "hopper/sample_dweight_room.h"

namespace knnconv::hopper {

// By one thread.
KNNCONV_DEVICE void LoadSampleBoxes(const SampleDweightTask& task, const SampleDweightRoom& room, SampleBoxWalk walk,
                                    const CUtensorMap* x, const CUtensorMap* g) {
  const int boxes = SampleBoxes(task.table.sources);
  SamplePlace held, stage;
  for (; walk.left > 0; walk.Advance()) {
    if (walk.begins) {
      Barrier* const has = &room.HasSample(held.place);
      room.SampleLeft(held.place).Wait(held.parity ^ 1);
      has->ArriveExpecting(boxes * kBoxBytes);
      for (int i = 0; i < boxes; ++i) {
        LoadBox(room.Sample(held.place) + i * kBoxBytes, x, has, 0, i * kStep, walk.sample);
      }
      held.Advance(task.samples_held);
    }
    room.Empty(stage.place).Wait(stage.parity ^ 1);
    room.Full(stage.place).ArriveExpecting(kBoxBytes);
    LoadBox(room.Stage(stage.place), g, &room.Full(stage.place), 0, walk.box * kStep, walk.sample);
    stage.Advance(task.stages);
  }
}

// By all other threads: where taps lie in a sample. Holes, and nodes behind the last, read zeros.
KNNCONV_DEVICE void FindSampleEntries(const SampleDweightTask& task, const SampleDweightRoom& room,
                                      const SampleBoxWalk& walk) {
  constexpr int kThreads = kSampleDweightThreads - 32, kBatch = 4;  // taps read at a time
  const int zeros = SampleZeros(task.table.sources), slots = task.table.neighbours;
  const int number = static_cast<int>(threadIdx.x), thread = number < kDweightConsumers ? number : number - 32;
  // Copies write zeros behind the last source, up to the end of its box.
  if (thread < task.samples_held * 8 && zeros >= SampleBoxes(task.table.sources) * kBoxBytes) {
    *reinterpret_cast<uint4*>(room.Sample(thread / 8) + zeros + thread % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
  const int first_slot = walk.tile * kSampleTileSlots, entries = min(walk.left, task.boxes) * kStep * kSampleTileSlots;
  const auto node_of = [&](int entry) {
    const int at = walk.box * kStep + entry / kSampleTileSlots, all = task.boxes * kStep;
    return at < all ? at : at - all;
  };
  for (int first = thread; first < entries; first += kBatch * kThreads) {
    uint32_t source[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int entry = first + i * kThreads, node = node_of(entry), slot = first_slot + entry % kSampleTileSlots;
      const bool exists = entry < entries && node < task.table.outputs && slot < slots;
      source[i] = exists ? static_cast<uint32_t>(gpu::ReadOnly(task.table.indices + node * slots + slot)) : ~0u;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int entry = first + i * kThreads, node = node_of(entry), in_box = node % kStep;
      if (entry >= entries) break;
      const bool is_tap = source[i] < static_cast<uint32_t>(task.table.sources);
      room.Entries(entry % kSampleTileSlots, node / kStep)[in_box % 16 * (kStep / 16) + in_box / 16] =
          is_tap ? source[i] * kLineBytes + source[i] % 8 * 16 : zeros;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kSampleDweightThreads, 1)
    SampleDweightKernel(const KNNCONV_PARAMETER CUtensorMap x, const KNNCONV_PARAMETER CUtensorMap g,
                        const KNNCONV_PARAMETER SampleDweightTask task) {
  extern __shared__ unsigned char shared[];
  constexpr int kConsumerWarps = kDweightConsumers / 32, kReady = 1;  // a barrier
  const SampleDweightRoom room(shared, task);
  const SampleBoxWalk walk(task);
  const int warp = Uniform(static_cast<int>(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x) % 32;
  const bool has_bias = task.bias_partials != nullptr;
  if (warp == kConsumerWarps) {
    if (lane < task.samples_held) {
      room.HasSample(lane).Init(1);
      room.SampleLeft(lane).Init(kConsumerWarps * kWarpArrivals);
    }
    if (lane < task.stages) {
      room.Full(lane).Init(1);
      room.Empty(lane).Init((kConsumerWarps + (has_bias ? kBiasWarps : 0)) * kWarpArrivals);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
    __syncwarp();
    ArriveAt(kReady, kSampleDweightThreads);
    if (lane == 0) {
      LaunchDependents();  // the reduction
      LoadSampleBoxes(task, room, walk, &x, &g);
    }
    return;
  }
  FindSampleEntries(task, room, walk);
  const SampleDweightBias<T> bias(task, room, static_cast<int>(threadIdx.x) - kDweightConsumers - 32);
  const bool sums_bias = has_bias && warp > kConsumerWarps && warp <= kConsumerWarps + kBiasWarps;
  if (sums_bias) bias.FindCounts();
  SyncThreads(kReady, kSampleDweightThreads);
  if (sums_bias) bias.Run(walk);
  if (warp < kConsumerWarps) SampleDweightProducts<T>(task, room, walk, warp / 4).Run();
}

template <typename T>
gpu::Status LaunchSampleDweight(const gpu::LaunchSite& site, const CUtensorMap& x, const CUtensorMap& g,
                                const SampleDweightTask& task, const SampleDweightCut& cut) {
  return gpu::LaunchSized<SampleDweightKernel<T>>(site, cut.blocks, kSampleDweightThreads, cut.shared_bytes,
                                                  kMostBlockBytes, x, g, task);
}

}  // namespace knnconv::hopper
