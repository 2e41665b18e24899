// Asks the rules of tap_choice.h, all families included, which kernels forward and dinput get. What is expected is what
// docs/handlers.md says, or the arithmetic of its rules.
#include "hopper/tap_choice.h"
#include "tap_calls.h"

using namespace knnconv;
using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

// Rules hold for whatever device is asked about, with fewer multiprocessors than a cluster has blocks, too.
void CheckFewMultiprocessors() {
  constexpr Device kOne{1, 90, 227 << 10};
  Require("one multiprocessor", Ask(Sources(128, 60, 60, 9, 256, 256), kOne) == kHopperTiles &&
                                    Ask(Image(true, 8, 16, 128, 128), kOne) == kHopperTiles);
}

// Tables, one a sample, and weights, one a group.
void CheckGroups() {
  for (bool dinput : {false, true}) {
    const std::string name = dinput ? "dinput" : "forward";
    TapGemm gemm = dinput ? Sources(1, 4096, 4096, 16, 64, 128) : Columns(1, 4096, 4096, 16, 128, 64);
    const int64_t taps = 4096 * 16;
    gemm.groups = Shape({16});
    gemm.source_groups = Own({16}, 4096 * 128);
    gemm.table.source_groups = Own({16}, taps);
    gemm.table.slot_groups = dinput ? Own({16}, taps) : GroupStrides{};
    gemm.table.offset_groups = dinput ? Own({16}, 2 * 4097) : GroupStrides{};
    Require(name + " of a table a sample", Ask(gemm, kH200) == kHopperTiles);
    hopper::TapForm form;
    // Rows of all samples, 128 a tile.
    Require(name + ", tiles", hopper::ChooseForm(gemm, kH200, false, &form) && hopper::RowTiles(gemm, form) == 512 &&
                                  hopper::TileGroups(form) == 1);
    gemm.weight_groups = Own({16}, 16 * 128 * 64);
    Require(name + ", own weights", hopper::ChooseForm(gemm, kH200, false, &form) &&
                                        hopper::RowTiles(gemm, form) == 32 && hopper::TileGroups(form) == 16);
    gemm.weight_groups = {};
    if (dinput) {
      gemm.table.slot_groups = {};  // sources of each sample, and slots of all
      Require(name + ", shared slots", Ask(gemm, kH200, Wanted(KernelFamily::kHopper)) == kNone);
      gemm.table.slot_groups = Own({16}, taps);
    }
    gemm.groups = Shape({4, 1, 4});
    const auto own = [](int64_t matrix) { return Own({4, 1, 4}, matrix); };
    gemm.source_groups = own(4096 * 128);
    gemm.table.source_groups = own(taps);
    gemm.table.slot_groups = dinput ? own(taps) : GroupStrides{};
    gemm.table.offset_groups = dinput ? own(2 * 4097) : GroupStrides{};
    Require(name + ", two dimensions", Ask(gemm, kH200, Wanted(KernelFamily::kHopper)) == kHopperTiles);
    gemm.source_groups = Own({1, 1, 4}, 4096 * 128);  // shared by one dimension and not by the other
    Require(name + ", mixed dimensions", Ask(gemm, kH200, Wanted(KernelFamily::kHopper)) == kNone);
  }
  TapGemm images = Image(false, 16, 16, 64, 64);
  images.groups = Shape({8});
  images.weight_groups = Own({8}, 9 * 64 * 64);
  hopper::TapForm form;
  Require("images, own weights", hopper::ChooseForm(images, kH200, false, &form) && !form.tile.resident &&
                                     hopper::TileGroups(form) == 8);
  for (TapGemm none : {Image(false, 256, 32, 3, 32), Image(true, 256, 32, 32, 32), Columns(128, 4085, 964, 121, 3, 96)}) {
    none.groups = Shape({0});
    Require("no groups", Ask(none, kH200) == kTiles && Ask(none, kH200, Wanted(KernelFamily::kHopper)) == kTiles);
  }
}

void CheckFamilies() {
  for (bool dinput : {false, true}) {
    const std::string name = dinput ? "dinput" : "forward";
    Require(name + " 32 -> 32", Ask(Image(dinput, 256, 32, 32, 32), kH200) == kHopperPatches);
    Require(name + " 32 -> 64", Ask(Image(dinput, 256, 16, 32, 64), kH200) == kHopperPatches);
    Require(name + " 32 -> 32 on 8.0", Ask(Image(dinput, 256, 32, 32, 32), kA100) == kHaloPatches);
    Require(name + " 32 -> 32, wmma",
            Ask(Image(dinput, 256, 32, 32, 32), kH200, Wanted(KernelFamily::kAnyPortable)) == kHaloPatches);
    for (int channels : {8, 16, 24, 32, 64}) {
      Require(name + " to 8", Ask(Image(dinput, 256, 32, channels, 8), kH200) == kHaloPatches);
      Require(name + " to 16", Ask(Image(dinput, 256, 32, channels, 16), kH200) == kHopperPatches);
    }
    Require(name + " 8 -> 24", Ask(Image(dinput, 256, 32, 8, 24), kH200) == kHaloPatches);
    Require(name + " 8 -> 8, 7x7", Ask(Image(dinput, 256, 32, 8, 8, 7), kH200) == kHaloPatches);
    Require(name + " 8 -> 8, Hopper",
            Ask(Image(dinput, 256, 32, 8, 8), kH200, Wanted(KernelFamily::kHopper)) == kHopperPatches);
    Require(name + " 64 -> 64", Ask(Image(dinput, 256, 16, 64, 64), kH200) == kHopperPatches);
    Require(name + " 64 -> 64 of 8x8 pixels", Ask(Image(dinput, 256, 8, 64, 64), kH200) == kHopperTiles);
    Require(name + " 72 -> 64", Ask(Image(dinput, 256, 16, 72, 64), kH200) == kHopperTiles);
    Require(name + " 64 -> 64 on 8.0", Ask(Image(dinput, 256, 16, 64, 64), kA100) == kTiles);
    Require(name + " of one tap", Ask(Image(dinput, 256, 32, 32, 32, 1), kH200) == kTiles);
    Require(name + " of 8x8 pixels", Ask(Image(dinput, 256, 8, 32, 32), kH200) == kTiles);
    Require(name + " of 60 channels", Ask(Image(dinput, 256, 16, 60, 60), kH200) == kTiles);  // no lines of 16 bytes
    Require(name + ", wmma", Ask(Image(dinput, 256, 16, 64, 64), kH200, Wanted(KernelFamily::kAnyPortable)) == kTiles);
    Require(name + ", Hopper on 8.0", Ask(Image(dinput, 8, 16, 64, 64), kA100, Wanted(KernelFamily::kHopper)) == kNone);
    Require(name + ", bfloat16 on 7.5", Ask(Image(dinput, 8, 16, 64, 64), kT4) == kNone);
  }
  Require("3 -> 32", Ask(Image(false, 256, 32, 3, 32), kH200) == kHopperPatches);
  Require("3 -> 24", Ask(Image(false, 256, 32, 3, 24), kH200) == kHopperPatches);
  Require("3 -> 32, 5x5", Ask(Image(false, 256, 32, 3, 32, 5), kH200) == kHaloPatches);
  Require("3 -> 64, stride 2", Ask(Image(false, 128, 224, 3, 64, 7, 2), kH200) == kHopperPatches);
  Require("3 -> 64, stride 2, dinput", Ask(Image(true, 128, 224, 3, 64, 7, 2), kH200) == kHopperPatches);
  Require("3 -> 32, dinput", Ask(Image(true, 256, 32, 3, 32), kH200) == kHopperPatches);
  Require("3 -> 64, stride 4, dinput", Ask(Image(true, 128, 224, 3, 64, 11, 4), kH200) == kHopperPatches);
  Require("3 -> 64, stride 5, dinput", Ask(Image(true, 128, 220, 3, 64, 11, 5), kH200) != kHopperPatches);  // 75 columns
  Require("3 -> 72, dinput", Ask(Image(true, 256, 32, 3, 72), kH200) != kHopperPatches);
  Require("3 -> 32 on 8.0", Ask(Image(false, 256, 32, 3, 32), kA100) == kHaloPatches);
  Require("dinput of stride 4", Ask(Image(true, 256, 32, 64, 64, 5, 4), kH200) == kTiles);  // 16 residue classes
  Require("dinput of stride 3", Ask(Image(true, 256, 33, 64, 64, 5, 3), kH200) == kHopperTiles);
  Require("stride 9", Ask(Image(false, 256, 63, 64, 64, 9, 9), kH200) == kTiles);
  Require("stem", Ask(Columns(128, 4085, 964, 121, 3, 96), kH200) == kStems);
  Require("stem of a sample", Ask(Columns(1, 4085, 964, 121, 3, 96), kH200) == kTiles);
  Require("stem of 8 neighbours", Ask(Columns(128, 4085, 964, 8, 3, 96), kH200) == kTiles);
  Require("dinput of a stem", Ask(Sources(128, 4085, 964, 121, 3, 96), kH200) == kHopperStemSums);
  Require("dinput of a stem, wmma",
          Ask(Sources(128, 4085, 964, 121, 3, 96), kH200, Wanted(KernelFamily::kAnyPortable)) == kStemSums);
  Require("dinput of a stem, halo",
          Ask(Sources(128, 4085, 964, 121, 3, 96), kH200, Wanted(KernelFamily::kHalo)) == kStemSums);
  Require("dinput of a stem of 4097 points", Ask(Sources(128, 4097, 964, 121, 3, 96), kH200) == kStemSums);
  Require("dinput of a stem of 129 slots", Ask(Sources(128, 4085, 964, 129, 3, 96), kH200) == kStemSums);
  Require("dinput of a stem of 4 channels", Ask(Sources(128, 4085, 964, 121, 4, 96), kH200) == kStemSums);
  Require("dinput of a stem on 8.0", Ask(Sources(128, 4085, 964, 121, 3, 96), kA100) == kStemSums);
  Require("dinput of a stem on 8.9", Ask(Sources(128, 4085, 964, 121, 3, 96), kL4) == kTiles);  // 24 rows at a time
  Require("dinput of a stem of a sample", Ask(Sources(1, 4085, 964, 121, 3, 96), kH200) == kTiles);
  Require("dinput of a stem to 104", Ask(Sources(128, 4085, 964, 121, 3, 104), kH200) == kTiles);
  Require("dinput of 5 channels", Ask(Sources(128, 4085, 964, 121, 5, 96), kH200) == kTiles);
  TapGemm sparse = Sources(256, 4085, 964, 121, 3, 96);
  sparse.table.taps = 964 * 30;
  sparse.workspace_bytes = HubPartials(sparse, sparse.table.taps) * 4;
  Require("dinput of few taps", Ask(sparse, kH200) == kTiles);
  Require("dinput of few taps, halo", Ask(sparse, kH200, Wanted(KernelFamily::kHalo)) == kStemSums);
  sparse.workspace_bytes = 1000;
  Require("dinput without room", Ask(sparse, kH200, Wanted(KernelFamily::kHalo)) == kNone);
  Require("table", Ask(Columns(256, 1024, 1024, 9, 64, 64), kH200) == kHopperTiles);
  Require("table, halo", Ask(Columns(256, 1024, 1024, 9, 64, 64), kH200, Wanted(KernelFamily::kHalo)) == kNone);
  Require("cells of 64 channels", Ask(Sources(1, 100000, 100000, 27, 64, 64), kH200) == kHopperTiles);
  Require("cells of 128 channels", Ask(Sources(1, 100000, 100000, 27, 128, 128), kH200) == kHopperTiles);
  CheckGroups();
  TapGemm nothing = Columns(256, 1024, 1024, 9, 64, 64);
  nothing.depth = 0;
  Require("no channels", Ask(nothing, kH200, Wanted(KernelFamily::kHopper)) == kTiles);
}

}  // namespace

int main() {
  CheckFewMultiprocessors();
  CheckFamilies();
  return Result();
}
