// Two warps of a block that computes weight gradients of samples: the bias gradient.
//
//     db[o] = sum over nodes:  g[node, o]
//
// All tiles' blocks read the same boxes of g; they take turns to sum them.
#pragma once

#include <cstdint>

#include "hopper/dweight_bias.h"
#include "hopper/sample_dweight_room.h"

namespace knnconv::hopper {

template <typename T>
class SampleDweightBias {
 public:
  KNNCONV_DEVICE SampleDweightBias(const SampleDweightTask& task, const SampleDweightRoom& room, int thread)
      : task_(task), room_(room), thread_(thread), quads_(task.columns / 4), parts_(BiasParts(task.columns)) {}

  // Before the barrier behind which Run may read them: which nodes count.
  KNNCONV_DEVICE void FindCounts() const {
    static_assert(kStep == 32 * kBiasWarps);
    for (int box = 0; box < task_.boxes; ++box) {
      const int node = box * kStep + thread_;
      const int64_t first = int64_t{node} * task_.table.neighbours;
      bool counts = !task_.table.zero_empty_rows;
      for (int k = 0; !counts && node < task_.table.outputs && k < task_.table.neighbours; ++k) {
        counts = IsTap(task_.table, first + k);
      }
      const uint32_t bits = __ballot_sync(kAllLanes, counts);
      if (thread_ % 32 == 0) room_.Counts(box)[thread_ / 32] = bits;
    }
  }

  KNNCONV_DEVICE void Run(SampleBoxWalk walk) const {
    const int tiles = static_cast<int>(gridDim.x) / task_.ways;
    float4 total = {0, 0, 0, 0};
    for (SamplePlace stage; walk.left > 0; walk.Advance(), stage.Advance(task_.stages)) {
      room_.Full(stage.place).Wait(stage.parity);
      if (walk.left % tiles == walk.tile) AddBox(room_.Stage(stage.place), room_.Counts(walk.box), &total);
      room_.Empty(stage.place).ArriveAsWarp();
    }
    reinterpret_cast<float4*>(task_.bias_partials)[int64_t{blockIdx.x} * (kBiasSums / 4) + thread_] = total;
  }

 private:
  // A thread has four columns and every parts-th line.
  KNNCONV_DEVICE void AddBox(const unsigned char* lines, const uint32_t* counts, float4* total) const {
    constexpr int kLines = 16;  // read at a time
    const int quad = thread_ % quads_, first = thread_ / quads_;
    if (first >= parts_) return;
    const uint64_t counted = static_cast<uint64_t>(counts[1]) << 32 | counts[0];
    float4 sum = {0, 0, 0, 0};
    for (int line = first; line < kStep; line += kLines * parts_) {
      uint2 four[kLines];
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        const int at = min(line + i * parts_, kStep - 1);
        const int chunk = quad / 2 ^ at % 8;  // of 16 bytes, which are swizzled by a line's number
        four[i] = *reinterpret_cast<const uint2*>(lines + at * kLineBytes + chunk * 16 + quad % 2 * 8);
      }
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        const int at = line + i * parts_;
        if (at >= kStep || (counted >> at & 1) == 0) four[i] = {0, 0};
        Add(&sum, reinterpret_cast<const FourOf<T>&>(four[i]));
      }
    }
    Add(total, sum);
  }

  const SampleDweightTask& task_;
  const SampleDweightRoom& room_;
  const int thread_, quads_, parts_;
};

}  // namespace knnconv::hopper
