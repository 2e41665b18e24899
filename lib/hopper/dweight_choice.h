// When Hopper's kernels of weight gradients (compute capability 9.0) run, and the tiles that dw is cut into.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/dweight.h"
#include "hopper/dweight_sizes.h"
#include "hopper/sample_dweight_plan.h"

namespace knnconv::hopper {

inline constexpr int kInSamples = kDweightTileCount;  // stands for a tile of blocks that have samples of x

struct DweightPlan {
  DweightSizes sizes;
  int tile = -1;  // of kDweightTiles; -1 where it cannot serve, or partial sums have no room
  int64_t boxes = 0, steps = 0;  // of a list; strips, where the tile has some
  int64_t blocks = 0, row_tiles = 0, column_tiles = 0;
  double cycles = 0;  // of a multiprocessor, estimated; only ratios matter
  SampleDweightCut samples;  // where it has blocks, these run and no tile
};

// The plan of one tile, or with -1 the one of least estimated time; kInSamples: of samples, where they fit.
DweightPlan PlanDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device, int tile);
DweightPlan PlanDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, const gpu::Device& device, int tile);
DweightPlan PlanDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps, const gpu::Device& device, int tile);

// Whether Hopper's kernels are to compute `dweight`: where they can if `forced`, else where they are expected to be
// the faster ones, too; and how. They can where x and g are of one 16-bit type, channels and columns multiples of 8,
// with room for partial sums, a dense convolution within the copy engine's reach, and groups that FindGroups finds.
bool ChooseDweight(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan);
bool ChooseDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan);
bool ChooseDweight(const gpu::Dweight& dweight, const gpu::SlotTaps& taps, const gpu::Device& device, bool forced,
                   DweightPlan* plan);

}  // namespace knnconv::hopper
