// Asks the rules of tap_choice.h, all families included, which kernels forward and dinput get. What is expected is what
// docs/handlers.md says, or the arithmetic of its rules.
#include <array>
#include <vector>

#include "gpu/halo.h"
#include "gpu/hub_sums.h"
#include "gpu/tap_choice.h"
#include "hopper/sample_plan.h"
#include "rules.h"

using namespace knnconv;
using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

// Forward of a square image, or dinput of the same call, "same" padding.
TapGemm Image(bool transposed, int batch, int size, int channels, int outputs, int kernel = 3, int stride = 1) {
  TapGemm gemm{};
  const int out = (size + stride - 1) / stride;
  gemm.kind = Taps::kWindow;
  gemm.transposed = gemm.window.transposed = transposed;
  gemm.source_type = gemm.compute_type = gemm.out_type = Element::kBF16;
  gemm.batch = batch;
  gemm.nodes = int64_t{transposed ? size : out} * (transposed ? size : out);
  gemm.source_rows = int64_t{transposed ? out : size} * (transposed ? out : size);
  gemm.depth = transposed ? outputs : channels;
  gemm.columns = transposed ? channels : outputs;
  gemm.slots = kernel * kernel;
  for (int d = 0; d < 2; ++d) {
    gemm.window.kernel[d] = kernel;
    gemm.window.stride[d] = stride;
    gemm.window.padding[d] = (kernel - 1) / 2;
    gemm.window.dilation[d] = 1;
    gemm.window.source_size[d] = transposed ? out : size;
    gemm.window.out_size[d] = transposed ? size : out;
  }
  return gemm;
}

// Forward over a table without slots.
TapGemm Columns(int batch, int sources, int rows, int neighbours, int channels, int outputs) {
  TapGemm gemm{};
  gemm.kind = Taps::kColumns;
  gemm.source_type = gemm.compute_type = gemm.out_type = Element::kBF16;
  gemm.batch = batch;
  gemm.nodes = rows;
  gemm.source_rows = sources;
  gemm.depth = channels;
  gemm.columns = outputs;
  gemm.slots = gemm.table.columns = neighbours;
  return gemm;
}

// dinput over a table.
TapGemm Sources(int batch, int sources, int rows, int slots, int channels, int outputs) {
  TapGemm gemm = Columns(batch, rows, sources, 0, outputs, channels);
  gemm.kind = Taps::kSources;
  gemm.transposed = true;
  gemm.slots = slots;
  gemm.table.taps = int64_t{rows} * slots;
  gemm.workspace_bytes = HubPartials(gemm, gemm.table.taps) * 4;
  return gemm;
}

Kernel Ask(const TapGemm& gemm, const Device& device, const TileChoice& wanted = {}) {
  TapDecision decision;
  return ChooseTapGemm(gemm, device, wanted, &decision).ok() ? KernelOf(decision) : kNone;
}

// The portable kernels' tile, whatever else would be faster.
TapLaunch Tile(const TapGemm& gemm, const Device& device, TileChoice wanted = {}) {
  TapDecision decision;
  wanted.kernel = KernelFamily::kPortable;
  RequireOk("tile", ChooseTapGemm(gemm, device, wanted, &decision));
  return decision.index() == 0 ? std::get<TapLaunch>(decision) : TapLaunch{};
}

TileChoice Wanted(KernelFamily kernel) {
  TileChoice wanted;
  wanted.kernel = kernel;
  return wanted;
}

// Of an operand whose matrices are of some size, where groups have `sizes`.
GroupStrides Own(const std::vector<int64_t>& sizes, int64_t matrix) {
  GroupStrides strides;
  for (size_t i = sizes.size(); i-- > 0; matrix *= sizes[i]) strides.step[i] = sizes[i] == 1 ? 0 : matrix;
  return strides;
}

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
  Require("dinput of a stem", Ask(Sources(128, 4085, 964, 121, 3, 96), kH200) == kStemSums);
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

// Hopper's tile.
hopper::TileForm HopperTile(const TapGemm& gemm) {
  TapDecision decision;
  RequireOk("Hopper's tile", ChooseTapGemm(gemm, kH200, Wanted(KernelFamily::kHopper), &decision));
  const auto* form = std::get_if<hopper::TapForm>(&decision);
  return form != nullptr ? form->tile : hopper::TileForm{};
}

void CheckHopperTiles() {
  Require("long lists of few nodes", HopperTile(Sources(128, 60, 60, 9, 256, 384)).split == 2);
  Require("long lists of few nodes, 384 columns", HopperTile(Sources(128, 60, 60, 9, 384, 384)).split == 2);
  Require("long lists of few nodes, forward", HopperTile(Columns(128, 60, 60, 9, 256, 384)).split == 1);
  Require("lists of 16 nodes", HopperTile(Sources(512, 16, 16, 9, 256, 256)).split == 2);
  Require("lists of many nodes", HopperTile(Sources(256, 256, 256, 9, 256, 256)).split == 1);
  Require("lists of many nodes, 128 columns", HopperTile(Sources(256, 512, 512, 9, 128, 128)).split == 1);
  Require("lists of a sample", HopperTile(Sources(1, 60, 60, 9, 256, 384)).source == hopper::Source::kExtra);
  Require("lists of a sample, 64 columns", HopperTile(Sources(1, 60, 60, 9, 64, 384)).source == hopper::Source::kExtra);
  Require("lists of 9 samples, 64 to 64", HopperTile(Sources(9, 60, 60, 9, 64, 64)).source == hopper::Source::kExtra);
  Require("96 columns", HopperTile(Sources(128, 230, 230, 25, 96, 256)).columns == 96);
  Require("96 columns, forward", HopperTile(Columns(128, 230, 230, 25, 256, 96)).columns != 96);
  Require("64 columns", HopperTile(Sources(128, 230, 230, 9, 64, 64)).resident);
  Require("64 columns, 10 slots", !HopperTile(Sources(128, 230, 230, 10, 64, 64)).resident);
}

// Whether samples of some shape lie in shared memory, in any batch.
bool AreSamples(int sources, int rows, int neighbours, int channels, int outputs) {
  const auto is = [&](int batch) {
    return HopperTile(Columns(batch, sources, rows, neighbours, channels, outputs)).source == hopper::Source::kSample;
  };
  Require("samples whatever the batch is", is(1) == is(40) && is(1) == is(256));
  return is(1);
}

void CheckSamples() {
  Require("samples", AreSamples(230, 230, 9, 64, 64) && AreSamples(230, 100, 9, 64, 40));
  Require("samples with room", AreSamples(1024, 1024, 9, 64, 64) && AreSamples(1228, 300, 9, 64, 64));
  Require("a sample without room", !AreSamples(1229, 300, 9, 64, 64));
  Require("weights with room", AreSamples(60, 60, 26, 64, 64) && !AreSamples(60, 60, 28, 64, 64));
  Require("other channels", !AreSamples(60, 60, 9, 72, 64) && !AreSamples(60, 60, 9, 56, 64));
  Require("more columns", !AreSamples(60, 60, 9, 64, 72));
  Require("more sources than taps", !AreSamples(300, 33, 9, 64, 64));
  Require("lists", HopperTile(Sources(40, 230, 230, 9, 64, 64)).source != hopper::Source::kSample);
  TapGemm groups = Columns(1, 230, 230, 9, 64, 64);
  groups.groups = Shape({16});
  groups.source_groups = Own({16}, 230 * 64);
  Require("groups of samples", HopperTile(groups).source != hopper::Source::kSample);

  // Parts of samples keep all multiprocessors busy.
  const auto cut = [](int batch, int nodes) {
    return hopper::CutSamples(Columns(batch, nodes, nodes, 9, 64, 64), kH200.multiprocessors);
  };
  Require("a sample a block", cut(128, 230).parts == 1 && cut(128, 230).blocks == 128);
  Require("one sample at once", cut(128, 230).samples_held == 1);
  Require("a strip a block", cut(10, 230).parts == 4 && cut(10, 230).blocks == 40);
  Require("two samples a block", cut(256, 1024).blocks == 132 && cut(256, 1024).samples_held == 1);
  Require("two samples at once", cut(300, 230).blocks == 132 && cut(300, 230).samples_held == 2);
}

void CheckTiles() {
  for (auto [columns, width] : {std::array<int, 2>{8, 32}, {24, 32}, {32, 32}, {40, 64}, {64, 64}, {96, 128}, {160, 64},
                                {256, 128}, {384, 128}}) {
    const TapLaunch launch = Tile(Image(false, 256, 32, 64, columns), kH200);
    Require(std::to_string(columns) + " columns", launch.columns == width && launch.rows == 128);
  }
  Require("16 rows", Tile(Columns(2, 8, 8, 9, 64, 64), kH200).rows == 16);
  Require("few rows", Tile(Columns(2, 100, 100, 9, 64, 64), kH200).rows == 64);  // two tiles of 128
  Require("copies", Tile(Image(false, 256, 16, 64, 64), kH200).staging == Staging::kAsync);
  Require("3 channels", Tile(Image(false, 256, 16, 3, 64), kH200).staging == Staging::kAny);
  Require("cells", Tile(Sources(1, 1000, 1000, 27, 64, 64), kH200).staging == Staging::kCells);
  Require("no cells", Tile(Sources(9, 1000, 1000, 27, 64, 64), kH200).staging == Staging::kAsync);
  TapGemm half = Sources(1, 1000, 1000, 27, 64, 64);
  half.source_type = half.compute_type = Element::kF16;
  Require("no cells of float16", Tile(half, kH200).staging == Staging::kAsync);
  TapGemm wide = Image(false, 256, 16, 64, 64);
  wide.source_type = Element::kF32;
  Require("float32 source", Tile(wide, kH200).staging == Staging::kAny && Tile(wide, kH200).rows == 64);
  // 64 KB hold two stages of (64 + 128) * 72 elements, not of (128 + 128).
  TapGemm large = Image(true, 256, 32, 128, 128);
  large.source_type = large.compute_type = Element::kF16;
  Require("64 KB", Tile(large, kT4).rows == 64);
  TileChoice wanted = Wanted(KernelFamily::kPortable);
  wanted.rows = wanted.columns = 128;
  Require("128 x 128 in 64 KB", Ask(large, kT4, wanted) == kNone && Ask(large, kL4, wanted) == kTiles);
}

// Operands that start 2 bytes behind a multiple of 16: each family declines, or stages by elements what is off.
void CheckOffsets() {
  TapGemm gemm = Image(false, 256, 16, 64, 64);
  for (const void** operand : {&gemm.source, &gemm.weight, const_cast<const void**>(&gemm.out)}) {
    *operand = At(2);
    Require("Hopper, offset", Ask(gemm, kH200) == kTiles && Ask(gemm, kH200, Wanted(KernelFamily::kHopper)) == kNone);
    const TapLaunch launch = Tile(gemm, kH200);
    Require("tile, offset", launch.vector_a == (operand != &gemm.source) && launch.vector_b == (operand != &gemm.weight));
    Require("tile, staging", (launch.staging == Staging::kAsync) == (launch.vector_a && launch.vector_b));
    *operand = nullptr;
  }
  gemm.bias = static_cast<const float*>(At(4));
  Require("few channels, bias", Ask(gemm, kH200) == kHopperPatches);
  gemm.columns = 128;
  Require("Hopper, bias", Ask(gemm, kH200) == kTiles);
  TapGemm few = Image(false, 256, 32, 32, 32);
  for (const void** operand : {&few.source, &few.weight, const_cast<const void**>(&few.out)}) {
    *operand = At(2);
    HaloPlan plan;
    if (ChooseHalo(few, kH200, /*forced=*/true, &plan)) {
      Require("halo, source", plan.aligned_source == (operand != &few.source) && (plan.raw_bytes > 0) != plan.aligned_source);
      Require("halo, weight", plan.vector_weight == (operand != &few.weight));
      Require("halo, out", plan.vector_out == (static_cast<const void*>(few.out) == nullptr));
    } else {
      Require("halo, offset", false);
    }
    *operand = nullptr;
  }
  TapGemm stem = Columns(128, 4085, 964, 121, 3, 96);
  stem.out = At(2);
  Require("stem, out", Ask(stem, kH200) == kTiles);
  stem.out = nullptr;
  stem.weight = At(2);
  StemPlan plan;
  Require("stem, weight", ChooseStem(stem, kH200, false, &plan) && !plan.vector_weight);
}

}  // namespace

int main() {
  CheckFewMultiprocessors();
  CheckFamilies();
  CheckTiles();
  CheckHopperTiles();
  CheckSamples();
  CheckOffsets();
  return Result();
}
