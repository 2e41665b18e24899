// The warpgroups of a weight gradient's thread block that multiply, and their partial sums in memory.
#pragma once

#include <cstdint>

#include "hopper/dweight_task.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

// A warpgroup that multiplies.
template <typename T, typename Tile>
class DweightProducts {
  static constexpr int kSums = Tile::kWidth / 2;  // of a thread, for each block of 64 rows
  static constexpr uint64_t kBoxUnits = kBoxBytes / 16;  // of a descriptor's address

 public:
  KNNCONV_DEVICE DweightProducts(const DweightTask& task, int warpgroup)
      : task_(task), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    const int first_box = warpgroup_ * Tile::kBoxes;
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      const bool multiplies = segment.row_tile * Tile::kRowBoxes + first_box < task_.boxes;
      float* const out = task_.partials + segment.part * Tile::kElements +
                         (warpgroup_ * Tile::kBoxes * kBox * Tile::kWidth + thread_ * 4);
      // A strip's 64 channels come again for each tap, some lines further on.
      const int between = Tile::kHasStrips ? task_.dense.dilation[1] * kLineBytes : kBoxBytes;
      bool has_partial = false;
      // Chains end at different steps in each warpgroup: while one writes its sums, the others multiply.
      int chain = warpgroup_ * task_.chain / Tile::kWarpgroups;
      Clear();
      for (int left = segment.steps; left > 0; --left) {
        ring.full[place_.stage].Wait(place_.parity);
        if constexpr (Tile::kGathers) FenceAsyncProxy();  // threads have written x, not the copy engine
        if (multiplies) {
          FenceProducts();
          const unsigned char* const x = ring.RowBox(place_.stage, first_box);
          const unsigned char* const g = ring.ColumnBox(place_.stage, 0);
          const uint64_t left = Describe<Major::kMN>(Tile::kHasStrips ? g : x, kBoxBytes);
          const uint64_t right = Describe<Major::kMN>(Tile::kHasStrips ? x : g, between);
#pragma unroll
          for (int depth = 0; depth < kStep / 16; ++depth) {
#pragma unroll
            for (int block = 0; block < Tile::kBoxes; ++block) {
              MultiplyAdd<T, Tile::kWidth, Major::kMN, Major::kMN>(
                  sums_[block], left + block * kBoxUnits + depth * kDepthAdvance<Major::kMN>,
                  right + depth * kDepthAdvance<Major::kMN>);
            }
          }
          CommitProducts();
          WaitForProducts<1>();
        }
        Release(ring);
        held_ = place_.stage;
        place_.Advance();
        if (++chain < task_.chain || left == 1) continue;
        WaitForProducts<0>();
        Release(ring);
        if (multiplies) Store(out, has_partial);
        Clear();
        has_partial = true;
        chain = 0;
      }
      WaitForProducts<0>();
      Release(ring);
      if (multiplies) Store(out, has_partial);
    }
  }

 private:
  // Gives back the stage before this one, whose products are done. Each warp does: where nothing is multiplied, the
  // warps of a warpgroup do not keep step.
  KNNCONV_DEVICE void Release(const DweightRing<Tile>& ring) {
    if (held_ >= 0 && thread_ % 32 == 0) ring.empty[held_].Arrive();
    held_ = -1;
  }

  KNNCONV_DEVICE void Clear() {
#pragma unroll
    for (int block = 0; block < Tile::kBoxes; ++block) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[block][i] = 0;
      PinSums(sums_[block]);
    }
  }

  // Writes the sums, or adds them to what this thread wrote before.
  KNNCONV_DEVICE void Store(float* out, bool add) {
    constexpr int kBatch = 4;
    float4* const to = reinterpret_cast<float4*>(out);
#pragma unroll
    for (int block = 0; block < Tile::kBoxes; ++block) PinSums(sums_[block]);
#pragma unroll
    for (int first = 0; first < Tile::kBoxes * kSums / 4; first += kBatch) {
      float4 before[kBatch] = {};
      if (add) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) before[i] = to[(first + i) * 128];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float* const sum = sums_[(first + i) / (kSums / 4)] + (first + i) % (kSums / 4) * 4;
        const float4 old = before[i];
        to[(first + i) * 128] = {old.x + sum[0], old.y + sum[1], old.z + sum[2], old.w + sum[3]};
      }
    }
  }

  const DweightTask& task_;
  const int warpgroup_, thread_;
  typename DweightRing<Tile>::Place place_;
  int held_ = -1;  // the stage that products may still read
  float sums_[Tile::kBoxes][kSums];
};

}  // namespace knnconv::hopper
