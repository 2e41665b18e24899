// Asks the rules of Hopper's weight gradients when tables are read row by row: gathered into tiles, or in samples that
// lie in shared memory. What is expected is what docs/hopper.md says, or the arithmetic of its rules.
#include <string>

#include "dweight_calls.h"
#include "hopper/dweight_choice.h"
#include "rules.h"

using namespace knnconv;
using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

hopper::DweightPlan GatherPlan(const Dweight& dweight, const ColumnTaps& taps) {
  hopper::DweightPlan plan;
  hopper::ChooseDweight(dweight, taps, kH200, /*forced=*/true, &plan);
  return plan;
}

// Rows of x one by one, where boxes of 64 batch entries are less than five sixths full.
void CheckGathers() {
  const auto gathers = [](int64_t batch, int channels, int columns) {
    return GatherPlan(Gradient(batch, 9, channels, columns), Neighbours(1024, 1024, 9)).sizes.gathers;
  };
  for (int64_t batch : {1, 31, 32, 40, 53, 65, 106}) {
    Require("gathers, batch " + std::to_string(batch), gathers(batch, 64, 64));
  }
  for (int64_t batch : {54, 64, 107, 128, 256}) {
    Require("boxes, batch " + std::to_string(batch), !gathers(batch, 64, 64));
  }
  Require("boxes of few channels", !gathers(40, 48, 64) && gathers(31, 48, 64));
  const auto tile = [](int channels, int columns, int nodes) {
    return hopper::kDweightTiles[GatherPlan(Gradient(1, 27, channels, columns), Neighbours(nodes, nodes, 27)).tile];
  };
  using Tile = hopper::DweightTileSize;
  Require("100k 64", tile(64, 64, 100000) == Tile{3, 1, 64, 1});
  Require("100k 128", tile(128, 128, 100000) == Tile{3, 1, 128, 1});
  Require("100k 64-256", tile(64, 256, 100000) == Tile{2, 2, 128, 1});
  Require("50k 256", tile(256, 256, 50000) == Tile{2, 1, 256, 1});
}

// Samples of x in shared memory, for tables that tiles would gather, where blocks have few boxes.
void CheckSamples() {
  const auto cut = [](const Dweight& dweight, const ColumnTaps& taps) { return GatherPlan(dweight, taps).samples; };
  const auto are = [&](int64_t batch, int nodes, int slots, int columns = 64) {
    return cut(Gradient(batch, slots, 64, columns), Neighbours(nodes, nodes, slots)).blocks > 0;
  };
  Require("samples", are(1, 230, 9) && are(40, 230, 9) && are(10, 230, 25) && are(4, 1024, 9) && are(10, 230, 9, 40));
  Require("samples of many boxes", !are(90, 230, 9) && !are(30, 512, 25) && !are(40, 230, 25));
  Require("large samples of many boxes", are(32, 512, 9) && !are(16, 1024, 9));
  Require("samples with room", are(1, 1464, 9) && !are(1, 1465, 9));
  Require("samples that boxes of a batch serve", !are(64, 64, 9) && !are(128, 230, 9));
  Require("more sources than taps", cut(Gradient(10, 9, 64, 64), Neighbours(1000, 100, 9)).blocks == 0);
  Require("samples of 72 channels", cut(Gradient(10, 9, 72, 64), Neighbours(230, 230, 9)).blocks == 0);
  Require("samples of 72 columns", !are(10, 230, 9, 72));
  ColumnTaps taps = Neighbours(230, 230, 9);
  taps.index_groups = Step(230 * 9);
  Dweight groups = Gradient(1, 9, 64, 64);
  groups.x_groups = groups.g_groups = Step(230 * 64);
  groups.shapes = {Shape({1}), Shape({16})};
  Require("groups of samples", cut(groups, taps).blocks == 0);
  // 40 boxes, in fewer parts than multiprocessors could take; 160, each block's of one sample.
  const hopper::SampleDweightCut ten = cut(Gradient(10, 9, 64, 64), Neighbours(230, 230, 9));
  Require("parts of 10 samples", ten.tiles == 3 && ten.ways == 20 && ten.blocks == 60 && ten.samples_held == 1);
  Require("parts of 40 samples", cut(Gradient(40, 9, 64, 64), Neighbours(230, 230, 9)).ways == 40);
  Dweight few = Gradient(40, 9, 64, 64);
  few.partial_elements = int64_t{16} * 3 * (3 * 64 * 64 + hopper::kBiasSums);
  Require("room for 15 parts", cut(few, Neighbours(230, 230, 9)).blocks == 0);
  few.batch = 20;
  Require("room for 15 parts of 80 boxes", cut(few, Neighbours(230, 230, 9)).blocks > 0);
}

}  // namespace

int main() {
  CheckGathers();
  CheckSamples();
  return Result();
}
