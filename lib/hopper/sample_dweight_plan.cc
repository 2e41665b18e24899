#include "hopper/sample_dweight_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/device.h"
#include "hopper/dweight_sizes.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv;

constexpr int64_t kPart = kSampleTile.elements();
constexpr int kSpare = 3;  // multiprocessors that let the second kernel start early
constexpr int kBarrierBytes = 8 * 2 * (kMostHeldSamples + kMostSampleStages);
constexpr int kLeastStages = 3;
constexpr int64_t kMostDepth = 1 << 20;  // so that products of a block's number and boxes have 31 bits

// Samples that a block meets at most.
int64_t SamplesOf(const SampleDweightCut& cut, int64_t depth, int64_t ways) {
  const int64_t boxes = CeilDiv(depth, ways);
  const bool are_whole = depth % ways == 0 && (boxes % cut.boxes == 0 || cut.boxes % boxes == 0);
  return are_whole ? CeilDiv(boxes, int64_t{cut.boxes}) : CeilDiv(boxes - 1, int64_t{cut.boxes}) + 1;
}

// Estimated cycles of an H200: until a block has its sums, and with what parts take.
double BlockCycles(const SampleDweightCut& cut, int64_t depth, int64_t ways, int64_t sample_bytes) {
  constexpr double kOfBox = 800;  // to multiply one
  constexpr double kFill = 35;    // bytes of a sample, a cycle
  const double samples = double(SamplesOf(cut, depth, ways) * sample_bytes);
  return double(CeilDiv(depth, ways)) * kOfBox + samples / kFill;
}

double CyclesOf(const SampleDweightCut& cut, int64_t depth, int64_t ways, int64_t sample_bytes) {
  constexpr double kOfPart = 28;  // to write and read one
  return BlockCycles(cut, depth, ways, sample_bytes) + double(ways * cut.tiles) * kOfPart;
}

// Whether x has 64 channels and dw up to 64 columns, in one group, and lines of samples have a tap each or more.
bool Fits(const gpu::Dweight& dweight, const gpu::NeighborTable& table) {
  return !HasGroups(dweight) && dweight.channels == kBox && dweight.columns <= kBox &&
         table.sources <= kMostBlockBytes / kLineBytes && table.outputs <= kMostDepth &&
         int64_t{table.outputs} * table.neighbours >= table.sources;
}

}  // namespace

SampleDweightCut CutSampleDweight(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps, const gpu::Device& device,
                                  bool forced) {
  constexpr double kMostCycles = 9000;  // of a block: tiles take less time than more
  SampleDweightCut cut;
  const gpu::NeighborTable& table = taps.table;
  if (!Fits(dweight, table) || (!forced && !Gathers(dweight, taps))) return cut;
  cut.tiles = static_cast<int32_t>(CeilDiv(dweight.slots, kSampleTile.row_boxes()));
  cut.boxes = SampleBoxes(table.outputs);
  const int64_t depth = dweight.batch * cut.boxes, sample = SampleRoomBytes(table.sources);
  // Each part has sums for db, too; and a tile's number is added to those of its parts.
  const int64_t room = (dweight.partial_elements - cut.tiles * kPart) / (cut.tiles * (kPart + kBiasSums));
  const int64_t most = std::min({depth, int64_t{(device.multiprocessors - kSpare) / cut.tiles}, room});
  if (most < 1 || depth > kMostDepth) return cut;
  int64_t ways = most;
  for (int64_t other = most; other > 0; --other) {
    if (CyclesOf(cut, depth, other, sample) < CyclesOf(cut, depth, ways, sample)) ways = other;
  }
  const int64_t boxes = CeilDiv(depth, ways), entries = int64_t{cut.boxes} * kStep * kSampleTile.row_boxes() * 4;
  const int64_t fixed = 1024 + kBarrierBytes + entries + cut.boxes * kStep / 8;
  const int64_t free = kMostBlockBytes - fixed;
  const int64_t held = std::min({(free - kLeastStages * kBoxBytes) / sample, SamplesOf(cut, depth, ways),
                                 int64_t{kMostHeldSamples}});
  if (held < 1 || (!forced && BlockCycles(cut, depth, ways, sample) > kMostCycles)) return cut;
  const int64_t wanted = std::clamp<int64_t>(boxes, kLeastStages, kMostSampleStages);
  cut.ways = static_cast<int32_t>(ways);
  cut.blocks = cut.tiles * cut.ways;
  cut.samples_held = static_cast<int32_t>(held);
  cut.stages = static_cast<int32_t>(std::min((free - held * sample) / kBoxBytes, wanted));
  cut.shared_bytes = static_cast<int32_t>(fixed + held * sample + int64_t{cut.stages} * kBoxBytes);
  return cut;
}

}  // namespace knnconv::hopper
