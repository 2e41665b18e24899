// A warpgroup of a block that computes weight gradients of samples: the products of one slot, and their sums.
#pragma once

#include <cstdint>

#include "hopper/float4_sums.h"
#include "hopper/sample_dweight_room.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename T>
class SampleDweightProducts {
  static constexpr int kSums = kBox / 2, kDepths = kStep / 16;

 public:
  KNNCONV_DEVICE SampleDweightProducts(const SampleDweightTask& task, const SampleDweightRoom& room,
                                       const SampleBoxWalk& walk, int warpgroup)
      : task_(task), room_(room), thread_(threadIdx.x % 128), warpgroup_(warpgroup), walk_(walk) {
    const int64_t part = walk.tile + int64_t{walk.tile} * task.ways + walk.way;
    out_ = reinterpret_cast<float4*>(task.partials + part * kSampleTile.elements()) +
           warpgroup * (kBox * kBox / 4) + thread_;
  }

  KNNCONV_DEVICE void Run() {
    const int lane = thread_ % 32;
    // A warp has 16 channels, which are two chunks of a line; of four matrices, two are of the first eight nodes.
    const uint32_t chunk = static_cast<uint32_t>(thread_ / 32 * 2 + lane / 8 % 2) * 16;
    const int node = lane / 16 * 8 + lane % 8;
    const uint64_t boxes = Describe<Major::kMN>(room_.Stage(0));
    SamplePlace held, stage;
    uint32_t sample = 0;
    int chain = 0, read = -1;
    bool has_partial = false;
    Clear();
    while (walk_.left > 0) {
      if (walk_.begins) {
        room_.HasSample(held.place).Wait(held.parity);
        sample = SharedAddress(room_.Sample(held.place));
      }
      const uint4 entry = LoadShared(SharedAddress(room_.Entries(warpgroup_, walk_.box)) + node * 16);
      room_.Full(stage.place).Wait(stage.parity);
      WaitForProducts(words_, task_.ways);
      if (read >= 0) room_.Empty(read).ArriveAsWarp();
      const uint32_t entries[kDepths] = {entry.x, entry.y, entry.z, entry.w};
#pragma unroll
      for (int depth = 0; depth < kDepths; ++depth) {
        LoadTransposed((entries[depth] ^ chunk) + sample, words_[depth]);
      }
      const uint64_t right = boxes + static_cast<uint64_t>(stage.place * (kBoxBytes / 16));
      FenceProducts();
#pragma unroll
      for (int depth = 0; depth < kDepths; ++depth) {
        MultiplyAdd<T, kBox, Major::kMN>(sums_, words_[depth], right + depth * kDepthAdvance<Major::kMN>);
      }
      CommitProducts();
      read = stage.place;
      stage.Advance(task_.stages);
      walk_.Advance();
      if (walk_.begins) {
        room_.SampleLeft(held.place).ArriveAsWarp();
        held.Advance(task_.samples_held);
      }
      if (++chain < task_.chain || walk_.left == 0) continue;
      WaitForProducts(words_, task_.ways);
      Store(has_partial);
      has_partial = true;
      chain = 0;
      Clear();
    }
    WaitForProducts(words_, task_.ways);
    Store(has_partial);
  }

 private:
  KNNCONV_DEVICE void Clear() {
#pragma unroll
    for (float& sum : sums_) sum = 0;
    PinSums(sums_);
  }

  // Writes the sums, or adds them to what this thread wrote before.
  KNNCONV_DEVICE void Store(bool add) {
    PinSums(sums_);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      float4 sum = {sums_[4 * i], sums_[4 * i + 1], sums_[4 * i + 2], sums_[4 * i + 3]};
      if (add) Add(&sum, out_[i * 128]);
      out_[i * 128] = sum;
    }
  }

  const SampleDweightTask& task_;
  const SampleDweightRoom& room_;
  const int thread_, warpgroup_;
  SampleBoxWalk walk_;
  float4* out_;  // a tile's sums lie as a warpgroup's threads have them, four by four
  float sums_[kSums];
  uint32_t words_[kDepths][4] = {};
};

}  // namespace knnconv::hopper
