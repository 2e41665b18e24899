// Weight gradients over a table without slots whose samples fit into a multiprocessor's shared memory: when they are
// computed so, and how their depth is cut for thread blocks (sample_dweight_kernel.h says how they are computed).
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/dweight.h"
#include "hopper/dweight_tiles.h"

namespace knnconv::hopper {

inline constexpr DweightTileSize kSampleTile = {3, 1, kBox, 1};  // of dw, that a block sums: three slots
inline constexpr int kMostHeldSamples = 4;  // by a block, at once
inline constexpr int kMostSampleStages = 16;  // that boxes of g pass through

// How a launch cuts the depth: a line of boxes of 64 nodes, sample after sample, whose last box may be ragged.
struct SampleDweightCut {
  int32_t blocks = 0;  // none: samples do not serve
  int32_t tiles = 0;   // of dw
  int32_t ways = 0;    // that the line is cut into, for each tile
  int32_t boxes = 0;   // of a sample
  int32_t samples_held = 0, stages = 0, shared_bytes = 0;
};

// Where samples fit and, unless `forced`, are expected to be the faster way; or no blocks.
SampleDweightCut CutSampleDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, const gpu::Device& device,
                                  bool forced);

// What a sample takes of shared memory, a line of zeros included, and where that line is.
KNNCONV_HOST_DEVICE constexpr int32_t SampleBoxes(int32_t rows) { return (rows + kStep - 1) / kStep; }
KNNCONV_HOST_DEVICE constexpr int32_t SampleZeros(int32_t sources) { return (sources + 7) / 8 * 8 * kLineBytes; }
KNNCONV_HOST_DEVICE constexpr int32_t SampleRoomBytes(int32_t sources) {
  const int32_t boxes = SampleBoxes(sources) * kBoxBytes, lines = SampleZeros(sources) + 8 * kLineBytes;
  return boxes > lines ? boxes : lines;
}

}  // namespace knnconv::hopper
