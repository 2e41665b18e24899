// The shared memory of a block that computes weight gradients of samples, and its part of the line of boxes.
#pragma once

#include <cstdint>

#include "hopper/dweight_plan.h"
#include "hopper/ptx.h"
#include "hopper/sample_dweight_launch.h"
#include "hopper/sample_place.h"

namespace knnconv::hopper {

inline constexpr int kSampleTileSlots = kSampleTile.row_boxes();
inline constexpr int kDweightConsumers = 128 * kSampleTile.warpgroups;
inline constexpr int kSampleDweightThreads = kDweightConsumers + 128;  // one of four warps loads, two sum db

class SampleDweightRoom {
 public:
  KNNCONV_DEVICE SampleDweightRoom(unsigned char* shared, const SampleDweightTask& task)
      : boxes_(task.boxes), sample_bytes_(SampleRoomBytes(task.table.sources)),
        samples_(shared + (1024 - SharedAddress(shared) % 1024) % 1024),
        stages_(samples_ + task.samples_held * sample_bytes_),
        entries_(reinterpret_cast<uint32_t*>(stages_ + task.stages * kBoxBytes)),
        barriers_(reinterpret_cast<Barrier*>(entries_ + kSampleTileSlots * boxes_ * kStep)),
        counts_(reinterpret_cast<uint32_t*>(barriers_ + 2 * (kMostHeldSamples + kMostSampleStages))) {}

  // Lines of a sample as the copy engine swizzles them.
  KNNCONV_DEVICE unsigned char* Sample(int place) const { return samples_ + place * sample_bytes_; }
  KNNCONV_DEVICE unsigned char* Stage(int stage) const { return stages_ + stage * kBoxBytes; }
  // Where in a sample the taps of a box's nodes lie; those of four nodes 16 apart side by side.
  KNNCONV_DEVICE uint32_t* Entries(int slot, int box) const { return entries_ + (slot * boxes_ + box) * kStep; }
  // Bits of a box's nodes: whether they count in db.
  KNNCONV_DEVICE uint32_t* Counts(int box) const { return counts_ + box * (kStep / 32); }
  KNNCONV_DEVICE Barrier& HasSample(int place) const { return barriers_[place]; }
  KNNCONV_DEVICE Barrier& SampleLeft(int place) const { return barriers_[kMostHeldSamples + place]; }
  KNNCONV_DEVICE Barrier& Full(int stage) const { return barriers_[2 * kMostHeldSamples + stage]; }
  KNNCONV_DEVICE Barrier& Empty(int stage) const { return Full(kMostSampleStages + stage); }

 private:
  const int boxes_, sample_bytes_;
  unsigned char *const samples_, *const stages_;
  uint32_t* const entries_;
  Barrier* const barriers_;
  uint32_t* const counts_;
};

// A block's boxes, one after the other.
struct SampleBoxWalk {
  int boxes, left;            // of a sample; of the block, this one included
  int tile, way, sample, box;  // box: of the sample
  bool begins;                // whether the block has no box of this sample before

  KNNCONV_DEVICE explicit SampleBoxWalk(const SampleDweightTask& task) : boxes(task.boxes), begins(true) {
    const int block = static_cast<int>(blockIdx.x);
    tile = Uniform(block / task.ways);
    way = block - tile * task.ways;
    const int share = task.depth / task.ways, rest = task.depth - share * task.ways;
    const int first = share * way + rest * way / task.ways;
    left = share * (way + 1) + rest * (way + 1) / task.ways - first;
    sample = Uniform(first / boxes);
    box = first - sample * boxes;
  }

  KNNCONV_DEVICE void Advance() {
    --left;
    begins = ++box == boxes;
    if (!begins) return;
    box = 0;
    ++sample;
  }
};

}  // namespace knnconv::hopper
