// Asks the rules of dweight_choice.h, all families included, which kernels weight gradients get. What is expected is what
// docs/handlers.md says, or the arithmetic of its rules.
#include <array>
#include <vector>

#include "dweight_calls.h"
#include "gpu/dweight_choice.h"
#include "gpu/halo_dweight.h"
#include "hopper/dweight_choice.h"
#include "rules.h"

using namespace knnconv;
using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

DweightChoice Wanted(KernelFamily kernel, int slices = -1) {
  DweightChoice wanted;
  wanted.kernel = kernel;
  wanted.slices = slices;
  return wanted;
}

template <typename Taps>
Kernel Ask(const Dweight& dweight, const Taps& taps, const Device& device, const DweightChoice& wanted = {}) {
  DweightDecision decision;
  return ChooseDweight(dweight, taps, device, wanted, &decision).ok() ? KernelOf(decision) : kNone;
}

template <typename Taps>
DweightLaunch Tile(const Dweight& dweight, const Taps& taps, const Device& device, int slices = -1,
                   bool asynchronous = true) {
  DweightDecision decision;
  DweightChoice wanted = Wanted(KernelFamily::kPortable, slices);
  wanted.asynchronous = asynchronous;
  RequireOk("dweight tile", ChooseDweight(dweight, taps, device, wanted, &decision));
  return decision.index() == 0 ? std::get<DweightLaunch>(decision) : DweightLaunch{};
}

void CheckFamilies() {
  Require("dweight 3 -> 32", Ask(Gradient(256, 9, 3, 32), Pixels(32), kH200) == kHopperPatches);
  Require("dweight 3 -> 32 on 8.0", Ask(Gradient(256, 9, 3, 32), Pixels(32), kA100) == kHaloPatches);
  Require("dweight 3 -> 32, 16 taps", Ask(Gradient(256, 16, 3, 32), Pixels(32, 4), kH200) == kHopperPatches);
  Require("dweight 3 -> 32, 64 taps", Ask(Gradient(256, 64, 3, 32), Pixels(32, 8), kH200) == kTiles);
  Require("dweight 3 -> 64, stride 2", Ask(Gradient(128, 49, 3, 64), Pixels(224, 7, 2), kH200) == kHopperPatches);
  Require("dweight 3 -> 64, ragged", Ask(Gradient(128, 49, 3, 64), Pixels(220, 7, 2), kH200) == kHaloPatches);
  Require("dweight 4 -> 64, stride 2", Ask(Gradient(128, 49, 4, 64), Pixels(224, 7, 2), kH200) == kHaloPatches);
  for (int columns : {8, 16, 32}) {
    Require("dweight of 8 channels", Ask(Gradient(256, 9, 8, columns), Pixels(32), kH200) == kHaloPatches);
    Require("dweight of 16 channels", Ask(Gradient(256, 9, 16, columns), Pixels(32), kH200) == kHopperPatches);
  }
  Require("dweight 8 -> 64", Ask(Gradient(256, 9, 8, 64), Pixels(32), kH200) == kHopperPatches);
  Require("dweight 8 -> 8, Hopper",
          Ask(Gradient(256, 9, 8, 8), Pixels(32), kH200, Wanted(KernelFamily::kHopper)) == kHopperPatches);
  Require("dweight 32 -> 64", Ask(Gradient(256, 9, 32, 64), Pixels(16), kH200) == kHopperPatches);
  Require("dweight 32 -> 64 on 8.0", Ask(Gradient(256, 9, 32, 64), Pixels(16), kA100) == kHaloPatches);
  Require("dweight 8x8 pixels", Ask(Gradient(256, 9, 32, 32), Pixels(8), kH200) == kTiles);
  Require("dweight 64 -> 64", Ask(Gradient(256, 9, 64, 64), Pixels(16), kH200) == kHopperPatches);
  Require("dweight 64 -> 64 of many pixels", Ask(Gradient(256, 9, 64, 64), Pixels(64), kH200) == kHopperTiles);
  Require("dweight 64 -> 64 on 8.0", Ask(Gradient(256, 9, 64, 64), Pixels(16), kA100) == kTiles);
  Require("dweight 40 -> 128", Ask(Gradient(256, 9, 40, 128), Pixels(16), kH200) == kTiles);
  Require("dweight stride 9", Ask(Gradient(256, 81, 64, 64), Pixels(63, 9, 9), kH200) == kTiles);
  Require("dweight table", Ask(Gradient(256, 9, 64, 64), Neighbours(1024, 1024, 9), kH200) == kHopperTiles);
  Require("dweight table, batch 31", Ask(Gradient(31, 9, 64, 64), Neighbours(1024, 1024, 9), kH200) == kHopperTiles);
  Require("dweight slots", Ask(Gradient(256, 9, 64, 64), Slots(1024, 1024, 9, 9), kH200) == kHopperTiles);
  Require("dweight stem", Ask(Gradient(128, 121, 3, 96), Neighbours(4085, 964, 121), kH200) == kStems);
  Require("dweight stem with slots", Ask(Gradient(128, 121, 3, 96), Slots(4085, 964, 121, 121), kH200) == kTiles);
  Require("dweight, bfloat16 on 7.5", Ask(Gradient(256, 9, 64, 64), Pixels(16), kT4) == kNone);
  const Kernel forced = Ask(Gradient(256, 9, 64, 128), Pixels(16), kH200, Wanted(KernelFamily::kHopper));
  Require("dweight, Hopper", forced == kHopperTiles);
  Require("dweight, no Hopper",
          Ask(Gradient(256, 9, 60, 64), Pixels(16), kH200, Wanted(KernelFamily::kHopper)) == kNone);
}

void CheckGroups() {
  const auto hopper = Wanted(KernelFamily::kHopper);
  ColumnTaps taps = Neighbours(4096, 4096, 16);
  taps.index_groups = Step(4096 * 16);
  Dweight dweight = Gradient(1, 16, 64, 64);
  dweight.x_groups = dweight.g_groups = Step(4096 * 64);
  dweight.shapes = {Shape({1}), Shape({16})};
  Require("dweight of a table a sample", Ask(dweight, taps, kH200) == kHopperTiles);
  dweight.g_groups = {};
  Require("dweight of one g", Ask(dweight, taps, kH200, hopper) == kNone);
  dweight.g_groups = Step(4096 * 64);
  dweight.shapes = {Shape({16}), Shape({1})};
  Require("dweight a sample", Ask(dweight, taps, kH200) == kHopperTiles);
  dweight.shapes = {Shape({1}), Shape({16})};
  SlotTaps slots = Slots(4096, 4096, 16, 27);
  dweight.slots = 27;
  Require("dweight of one table with slots", Ask(dweight, slots, kH200) == kHopperTiles);
  slots.index_groups = slots.slot_groups = slots.row_groups = slots.source_groups = Step(4096 * 16);
  slots.offset_groups = Step(2 * 28);
  Require("dweight of a table with slots a sample", Ask(dweight, slots, kH200) == kHopperTiles);
  slots.slot_groups = {};
  Require("dweight of indices a sample", Ask(dweight, slots, kH200, hopper) == kNone);
  dweight.slots = 16;
  // Samples of each of 4 models, which all have the same tables.
  dweight.shapes = {Shape({4, 1}), Shape({1, 16})};
  dweight.x_groups = dweight.g_groups = Steps(16 * 4096 * 64, 4096 * 64);
  taps.index_groups = Steps(0, 4096 * 16);
  Require("dweight of models of samples", Ask(dweight, taps, kH200) == kHopperTiles);
  dweight.g_groups = Steps(0, 4096 * 64);
  Require("dweight of models of one g", Ask(dweight, taps, kH200, hopper) == kNone);
  dweight.shapes = {Shape({1, 4}), Shape({16, 1})};
  dweight.g_groups = Steps(4 * 4096 * 64, 4096 * 64);
  Require("dweight of samples of models", Ask(dweight, taps, kH200, hopper) == kNone);
  dweight.shapes = {Shape({1}), Shape({16})};
  dweight.x_groups = dweight.g_groups = Step(4096 * 64);
  taps.index_groups = Step(4096 * 16);
  dweight.partial_elements = 70000;  // 6 tiles of 192 x 64 have more
  Require("dweight without room", Ask(dweight, taps, kH200, hopper) == kNone);
  Dweight images = Gradient(1, 9, 64, 64);
  images.shapes = {Shape({8}), Shape({1})};
  images.x_groups = images.g_groups = Step(256 * 64);
  Require("dweight of each image", Ask(images, Pixels(16), kH200) == kHopperTiles);
  Require("dweight of each image of 49 pixels", Ask(images, Pixels(7), kH200) == kTiles);
  images.x_groups = {};
  Require("dweight of one image and each g", Ask(images, Pixels(7), kH200) == kHopperTiles);
  images.shapes = {Shape({1}), Shape({0})};
  Require("dweight of no members", Ask(images, Pixels(16), kH200) == kTiles);
  for (int channels : {3, 32}) {
    Dweight none = Gradient(256, 9, channels, 32);
    none.shapes = {Shape({0}), Shape({1})};
    Require("no dweight", Ask(none, Pixels(32), kH200) == kTiles && Ask(none, Pixels(32), kH200, hopper) == kTiles);
  }
}

void CheckTiles() {
  // K_TOTAL = 27 rows of dw: one tile of 32 rows.
  const DweightLaunch first = Tile(Gradient(256, 9, 3, 64), Pixels(32), kH200);
  Require("27 rows", first.tile.rows == 32 && first.staging == DweightStaging::kCotangent && first.grid.row_tiles == 1);
  for (auto [columns, width] : {std::array<int, 2>{8, 32}, {24, 32}, {32, 32}, {64, 64}, {128, 128}, {256, 128}}) {
    const DweightLaunch launch = Tile(Gradient(256, 9, 64, columns), Pixels(16), kH200);
    Require(std::to_string(columns) + " columns of dw", launch.tile.columns == width);
  }
  Require("dw, copies", Tile(Gradient(256, 9, 64, 64), Pixels(16), kH200).staging == DweightStaging::kBoth);
  const DweightLaunch at_once = Tile(Gradient(256, 9, 512, 64), Pixels(16), kH200, -1, /*asynchronous=*/false);
  Require("dw, registers", at_once.staging == DweightStaging::kRegisters && at_once.tile.rows == kRowsThroughRegisters);
  const DweightLaunch by_element = Tile(Gradient(256, 9, 60, 64), Pixels(16), kH200, -1, /*asynchronous=*/false);
  Require("dw, elements at once", by_element.staging == DweightStaging::kScalar && by_element.tile.rows == 128);
  Require("dw, elements", Tile(Gradient(256, 9, 64, 63), Pixels(16), kH200).staging == DweightStaging::kScalar);
  // Many tiles of little depth fill the device; few tiles of much depth are split to fill it.
  Require("unsplit", Tile(Gradient(1, 9, 512, 512), Pixels(8), kH200).grid.slices == 1);
  const DweightLaunch split = Tile(Gradient(256, 9, 64, 64), Pixels(32), kH200);
  Require("split", split.blocks > kH200.multiprocessors && split.grid.slices > 1);
  Require("wanted slices", Tile(Gradient(256, 9, 64, 64), Pixels(32), kH200, 5).grid.slices == 5);
  Require("wanted unsplit", Tile(Gradient(256, 9, 64, 64), Pixels(32), kH200, 1).grid.slices == 1);
  const DweightChoice many = Wanted(KernelFamily::kPortable, 100000);
  Require("room for slices", Ask(Gradient(256, 9, 64, 64), Pixels(32), kH200, many) == kNone);
  // Three stages of 64 positions and 2 * 136 elements are 102 KB, more than 8.9 has.
  DweightChoice large = Wanted(KernelFamily::kPortable);
  large.rows = large.columns = 128;
  const Dweight wide = Gradient(256, 9, 128, 128);
  Require("128 x 128 of dw", Ask(wide, Pixels(16), kL4, large) == kNone && Ask(wide, Pixels(16), kA100, large) == kTiles);
  Require("dw in 99 KB", Tile(wide, Pixels(16), kL4).tile.columns == 64);
  DweightChoice middle = Wanted(KernelFamily::kPortable);
  middle.rows = 64;
  Require("64 rows by elements", Ask(Gradient(256, 9, 3, 64), Pixels(16), kH200, middle) == kNone);
}

// Whether taps of a kernel row share boxes of x.
bool HasStrips(const Dweight& dweight, const DenseTaps& taps) {
  hopper::DweightPlan plan;
  return hopper::ChooseDweight(dweight, taps, kH200, /*forced=*/true, &plan) &&
         hopper::kDweightTiles[plan.tile].has_strips();
}

void CheckStrips() {
  const Dweight dweight = Gradient(128, 9, 64, 64);
  Require("strips", HasStrips(dweight, Pixels(56)));
  Require("strips of few positions", !HasStrips(Gradient(1, 9, 64, 64), Pixels(16)));
  Require("strips, stride 2", !HasStrips(dweight, Pixels(112, 3, 2)));
  Require("strips, kernel 5", !HasStrips(Gradient(128, 25, 64, 64), Pixels(56, 5)));
  DenseTaps taps = Pixels(56);
  taps.stride[0] = 2, taps.out_size[0] = 28;
  Require("strips, every other line", HasStrips(dweight, taps));
  for (int dilation : {4, 5}) {  // 72 lines of shared memory, and 74
    taps = Pixels(56);
    taps.dilation[1] = taps.padding[1] = dilation;
    Require("strips, dilation " + std::to_string(dilation), HasStrips(dweight, taps) == (dilation == 4));
  }
}

template <typename Taps>
bool HasCut(const Dweight& dweight, const Taps& taps, const hopper::DweightTileSize& tile, int64_t blocks) {
  hopper::DweightPlan plan;
  return hopper::ChooseDweight(dweight, taps, kH200, /*forced=*/true, &plan) &&
         hopper::kDweightTiles[plan.tile] == tile && plan.blocks == blocks;
}

// Fewer blocks than multiprocessors, where they cut all tiles alike.
void CheckCuts() {
  Require("18 tiles", HasCut(Gradient(256, 9, 256, 256), Neighbours(256, 256, 9), {2, 1, 256, 1}, 126));
  Require("50 tiles", HasCut(Gradient(128, 25, 256, 256), Neighbours(512, 256, 25), {2, 1, 256, 1}, 125));
  Require("3 tiles", HasCut(Gradient(128, 9, 64, 64), Neighbours(230, 230, 9), {3, 1, 64, 1}, 129));
  Require("3 tiles, deep", HasCut(Gradient(256, 9, 64, 64), Neighbours(1024, 1024, 9), {3, 1, 64, 1}, 132));
  Require("72 tiles", HasCut(Gradient(256, 9, 512, 512), Neighbours(64, 64, 9), {2, 1, 256, 1}, 132));
  Require("18 tiles of pixels", HasCut(Gradient(128, 9, 256, 256), Pixels(14), {2, 1, 256, 1}, 126));
  Require("slots", HasCut(Gradient(256, 9, 256, 256), Slots(256, 256, 9, 9), {2, 1, 256, 1}, 132));
}

void CheckOffsets() {
  Dweight dweight = Gradient(256, 9, 64, 64);
  dweight.x = At(2);
  Require("dweight Hopper, x", Ask(dweight, Pixels(16), kH200) == kTiles);
  Require("dweight tile, x", Tile(dweight, Pixels(16), kH200).staging == DweightStaging::kCotangent);
  dweight.g = At(2);
  Require("dweight tile, g", Tile(dweight, Pixels(16), kH200).staging == DweightStaging::kScalar);
  dweight.x = nullptr;
  Require("dweight Hopper, g", Ask(dweight, Pixels(16), kH200) == kTiles);
  Dweight few = Gradient(256, 9, 32, 32);
  few.x = few.g = At(2);
  HaloDweightPlan plan;
  Require("dweight halo", ChooseHalo(few, Pixels(32), kH200, /*forced=*/true, &plan) && !plan.aligned_source &&
                              plan.raw_bytes > 0 && !plan.vector_cotangent);
  Dweight stem = Gradient(128, 121, 3, 96);
  stem.g = At(2);
  Require("dweight stem, g", Ask(stem, Neighbours(4085, 964, 121), kH200) == kTiles);
}

}  // namespace

int main() {
  CheckFamilies();
  CheckGroups();
  CheckTiles();
  CheckStrips();
  CheckCuts();
  CheckOffsets();
  return Result();
}
