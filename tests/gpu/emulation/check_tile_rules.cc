// Asks the rules of tap_choice.h which tiles forward and dinput get, in the portable kernels and in Hopper's, and what
// operands that start off a multiple of 16 bytes change. What is expected is what docs/handlers.md says, or the arithmetic
// of its rules.
#include <array>

#include "gpu/halo.h"
#include "hopper/sample_plan.h"
#include "tap_calls.h"

using namespace knnconv;
using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

// The portable kernels' tile, whatever else would be faster.
TapLaunch Tile(const TapGemm& gemm, const Device& device, TileChoice wanted = {}) {
  TapDecision decision;
  wanted.kernel = KernelFamily::kPortable;
  RequireOk("tile", ChooseTapGemm(gemm, device, wanted, &decision));
  return decision.index() == 0 ? std::get<TapLaunch>(decision) : TapLaunch{};
}

// Hopper's tile.
hopper::TileForm HopperTile(const TapGemm& gemm) {
  TapDecision decision;
  RequireOk("Hopper's tile", ChooseTapGemm(gemm, kH200, Wanted(KernelFamily::kHopper), &decision));
  const auto* form = std::get_if<hopper::TapForm>(&decision);
  return form != nullptr ? form->tile : hopper::TileForm{};
}

void CheckHopperTiles() {
  const auto is_pair = [](const hopper::TileForm& tile, int columns) {
    return tile.split == 2 && tile.tiles == 2 && tile.columns == columns;
  };
  Require("long lists of few nodes", is_pair(HopperTile(Sources(128, 60, 60, 9, 256, 384)), 128));
  Require("long lists of few nodes, 384 columns", is_pair(HopperTile(Sources(128, 60, 60, 9, 384, 384)), 192));
  Require("long lists of few nodes, 512 columns", is_pair(HopperTile(Sources(128, 60, 60, 9, 512, 512)), 256));
  Require("long lists of few nodes, forward", HopperTile(Columns(128, 60, 60, 9, 256, 384)).split == 1);
  Require("pairs of tiles", hopper::PairClusters(200, 192, 66) == 100 && hopper::PairClusters(120, 128, 66) == 60);
  Require("longest lists alone", hopper::PairClusters(120, 192, 66) == 66 && hopper::PairClusters(50, 128, 66) == 50);
  Require("lists of 16 nodes", is_pair(HopperTile(Sources(512, 16, 16, 9, 256, 256)), 128));
  const auto has = [](const TapGemm& gemm, int columns, int tiles) {
    return hopper::CanSplit(gemm, {hopper::Source::kBoxes, hopper::kBoxRows, columns, false, 2, tiles});
  };
  const TapGemm lists = Sources(128, 60, 60, 9, 384, 384), rows = Columns(128, 60, 60, 9, 384, 384);
  Require("a list that blocks share", has(lists, 128, 1) && !has(lists, 192, 1) && !has(lists, 256, 1));
  Require("two lists that blocks share", has(lists, 128, 2) && has(lists, 192, 2) && has(lists, 256, 2));
  Require("rows that blocks share", has(rows, 256, 1) && !has(rows, 128, 1) && !has(rows, 256, 2));
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
  CheckTiles();
  CheckHopperTiles();
  CheckSamples();
  CheckOffsets();
  return Result();
}
