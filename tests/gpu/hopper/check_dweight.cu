// Holds Hopper's weight gradients to sums in double precision, tile by tile, and times them. Not part of the test
// suite: a program for work on the kernels, without JAX. Its argument: check, few, chain, random, time, time32, small
// or once. `few`, with names of cases behind it, checks these in the tiles of their choice, for compute-sanitizer;
// `random` has a seed and a count behind it; `time` with names times these.
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I lib -DKNNCONV_HOPPER_POLLS='(1<<26)'
//         tests/gpu/hopper/check_dweight.cu lib/hopper/{,sample_}dweight*.c* lib/hopper/tensor_map.cc
//         -o check_dweight
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "dweight_random.h"
#include "dweight_times.h"
#include "dweight_values.h"

namespace {

int Tile(const hopper::DweightTileSize& wanted) {
  for (int tile = 0; tile < hopper::kDweightTileCount; ++tile) {
    if (hopper::kDweightTiles[tile] == wanted) return tile;
  }
  std::exit(1);
}

int CheckTiles() {
  int failures = 0, checks = 0;
  for (int tile = -1; tile < hopper::kDweightTileCount; ++tile) {
    const bool has_strips = tile >= 0 && hopper::kDweightTiles[tile].has_strips();
    std::vector<Case> cases = has_strips ? StripCases() : ValueCases();
    if (tile < 0) {
      for (const Case& c : SampleCases()) cases.push_back(c);
    }
    if (!has_strips) {
      for (const Case& c : DenseGroupCases()) cases.push_back(c);
    }
    if (tile < 0) {
      for (const Case& c : StripCases()) cases.push_back(c);
    }
    if (tile < 0 || hopper::CanGather(hopper::kDweightTiles[tile], /*has_slots=*/true)) {
      for (const Case& c : SlotGatherCases()) cases.push_back(c);
    }
    if (tile < 0 || hopper::CanGather(hopper::kDweightTiles[tile], /*has_slots=*/false)) {
      for (const Case& c : GatherCases()) cases.push_back(c);
      for (const Case& c : GroupCases()) cases.push_back(c);
    }
    for (const Case& c : cases) {
      failures += CheckCase<__nv_bfloat16>(c, Element::kF32, tile, false);
      failures += CheckCase<__half>(c, tile % 2 == 0 ? Element::kF16 : Element::kBF16, tile, true);
      checks += 2;
    }
  }
  for (const Case& c : SampleCases()) {
    failures += CheckCase<__nv_bfloat16>(c, Element::kF32, hopper::kInSamples, false);
    failures += CheckCase<__half>(c, Element::kF16, hopper::kInSamples, true);
    checks += 2;
  }
  std::printf("%d failures in %d checks\n", failures, checks);
  return failures;
}

int CheckFew(const std::vector<std::string>& names) {
  int failures = 0;
  size_t found = 0;
  for (const std::vector<Case>& cases : {ValueCases(), SampleCases(), GatherCases(), SlotGatherCases(), StripCases()}) {
    for (const Case& c : cases) {
      if (std::find(names.begin(), names.end(), c.name) == names.end()) continue;
      ++found;
      failures += CheckCase<__nv_bfloat16>(c, Element::kBF16, -1, true);
      std::printf("%s\n", c.name.c_str());
    }
  }
  return failures + (found < names.size());
}

// Tiles that can serve a case: -1, the one that its shape chooses, one more, and kInSamples. None if the kernels do not
// take it.
std::vector<int> TilesOf(const Case& c, RandomCases* random) {
  gpu::Device device;
  Check(gpu::GetDevice(0, &device));
  Problem p = Make<__nv_bfloat16>(c, Element::kF32, false, false, 1, 1 << 26);
  std::vector<int> tiles, others;
  for (int tile = 0; tile < hopper::kDweightTileCount; ++tile) {
    const auto plan = [&](const auto& taps) { return hopper::PlanDweight(p.dweight, taps, device, tile); };
    if (Takes(p) && WithTaps(p, plan).tile == tile) others.push_back(tile);
  }
  const auto in_samples = [&](const auto& taps) {
    return hopper::PlanDweight(p.dweight, taps, device, hopper::kInSamples).samples.blocks > 0;
  };
  if (!others.empty()) {
    tiles = {-1, others[random->Pick(0, static_cast<int>(others.size()) - 1)]};
    if (c.is_table && !c.has_slots && WithTaps(p, in_samples)) tiles.push_back(hopper::kInSamples);
  }
  Free(p);
  return tiles;
}

int CheckRandom(unsigned seed, int count) {
  RandomCases random(seed);
  int failures = 0, checks = 0;
  for (int i = 0; i < count; ++i) {
    const Case c = random.Next();
    for (int tile : TilesOf(c, &random)) {
      const bool zero = random.Pick(0, 1) == 0;
      const int failed = i % 2 == 0 ? CheckCase<__nv_bfloat16>(c, Element::kF32, tile, zero)
                                    : CheckCase<__half>(c, Element::kF16, tile, zero);
      if (failed > 0) {
        std::printf("  batch %d, %d to %d, %d x %d of %d, slots %d, out %d x %d, groups %d x %d x %d (%u %u %u)\n",
                    c.batch, c.channels, c.columns, c.outputs, c.neighbours, c.sources, c.slots, c.out[0], c.out[1],
                    c.dims[0], c.dims[1], c.dims[2], c.own_x, c.own_g, c.own_table);
      }
      failures += failed;
      ++checks;
    }
  }
  std::printf("%d failures in %d checks\n", failures, checks);
  return failures;
}

int CheckChains() {
  const Case k1 = Table("positive K1", 256, 64, 64, 64, 4096, 1), k9 = Table("positive K9", 256, 64, 64, 64, 4096, 9);
  const Case wide = Table("positive 256", 128, 128, 256, 64, 512, 9);
  const Case dense = Dense("positive dense", 64, 56, 56, 64, 64, 3, 1, 1);
  int failures = 0;
  failures += CheckCase<__nv_bfloat16>(k1, Element::kF32, Tile({1, 1, 64, 1}), false, true);
  failures += CheckCase<__nv_bfloat16>(k9, Element::kF32, Tile({3, 1, 64, 1}), false, true);
  failures += CheckCase<__nv_bfloat16>(wide, Element::kF32, Tile({2, 1, 256, 1}), false, true);
  failures += CheckCase<__nv_bfloat16>(wide, Element::kBF16, Tile({2, 1, 256, 1}), false, true);
  failures += CheckCase<__nv_bfloat16>(dense, Element::kF32, Tile({3, 1, 64, 3}), false, true);
  return failures;
}

struct TimedCase {
  Case shape;
  double target;  // milliseconds, on an H200
  std::vector<int> tiles;
};

std::vector<TimedCase> TimedCases() {
  const int a = Tile({3, 1, 64, 1}), b = Tile({2, 2, 128, 1}), c = Tile({2, 1, 256, 1});
  const int d = Tile({3, 1, 128, 1}), e = Tile({3, 1, 192, 1});
  const int f = Tile({2, 1, 128, 1}), g = Tile({1, 1, 128, 1}), h = Tile({1, 1, 64, 1});
  const int strips = Tile({3, 1, 64, 3}), samples = hopper::kInSamples;
  return {
      {Table("knn 64", 256, 64, 64, 1024, 1024, 9), 0.08, {a, samples}},
      {Table("knn 128", 256, 128, 128, 512, 512, 9), 0.098, {b, d}},
      {Table("knn 256", 256, 256, 256, 256, 256, 9), 0.141, {b, c}},
      {Table("knn 512", 256, 512, 512, 64, 64, 9), 0.113, {b, c}},
      {Table("knn 256 K25", 128, 256, 256, 512, 256, 25), 0.157, {b, c}},
      {Table("knn 96-256 K25", 128, 96, 256, 500, 230, 25), 0.2, {c}},
      {Table("knn 256-384", 128, 256, 384, 230, 60, 9), 0.073, {e, b}},
      {Table("knn 384-384", 128, 384, 384, 60, 60, 9), 0.111, {e, b}},
      {Table("knn 16 nodes", 512, 256, 256, 16, 16, 9), 0.033, {b, d}},
      {Table("knn 64 230", 128, 64, 64, 230, 230, 9), 0.011, {a, h, samples}},
      {Table("10 64 230", 10, 64, 64, 230, 230, 9), 0.036, {a, samples}},
      {Table("30 256", 30, 256, 256, 256, 256, 9), 0, {b, c}},
      {Table("40 256", 40, 256, 256, 256, 256, 9), 0, {b, c, d}},
      {Table("40 64 230", 40, 64, 64, 230, 230, 9), 0, {a, samples}},
      {Table("100 128", 100, 128, 128, 512, 512, 9), 0, {b}},
      {Table("50 64", 50, 64, 64, 1024, 1024, 9), 0, {a, samples}},
      {Table("100k 64", 1, 64, 64, 100000, 100000, 27), 0.148, {a, b}},
      {Table("100k 64-256", 1, 64, 256, 100000, 100000, 27), 0, {b, c, d}},
      {Table("100k 128", 1, 128, 128, 100000, 100000, 27), 0.41, {b, c, d}},
      {Table("50k 256", 1, 256, 256, 50000, 50000, 27), 0.717, {b, c, d}},
      {Groups(Table("per sample 64", 1, 64, 64, 4096, 4096, 16), 16, true, true, true, true), 0, {a, b}},
      {Table("one table 64", 1, 64, 64, 65536, 65536, 16), 0, {a, b}},
      {Groups(Table("per sample 128", 1, 128, 128, 4096, 4096, 16), 16, true, true, true, true), 0, {b, c, d}},
      {Table("one table 128", 1, 128, 128, 65536, 65536, 16), 0, {b, c}},
      {Groups(Table("gradients 64", 1, 64, 64, 4096, 4096, 16), 16, false, true, true, true), 0, {a, b}},
      {Groups(Table("slots a sample 64", 1, 64, 64, 4096, 4096, 16, 27), 16, true, true, true, true), 0, {h}},
      {Groups(Table("slots a sample 128", 1, 128, 128, 4096, 4096, 16, 27), 16, true, true, true, true), 0, {f}},
      {Groups(Table("slots a sample 256", 1, 256, 256, 4096, 4096, 16, 27), 16, true, true, true, true), 0, {c}},
      {Table("slots 64", 256, 64, 64, 1024, 1024, 9, 9), 0.09, {h}},
      {Table("slots 128", 256, 128, 128, 512, 512, 9, 9), 0.098, {f}},
      {Table("slots 256", 256, 256, 256, 256, 256, 9, 9), 0.141, {b, c}},
      {Dense("56x56 64", 128, 56, 56, 64, 64, 3, 1, 1), 0.075, {a, strips}},
      {Dense("28x28 128", 128, 28, 28, 128, 128, 3, 1, 1), 0.061, {b, d, strips}},
      {Dense("14x14 256", 128, 14, 14, 256, 256, 3, 1, 1), 0.0577, {b, c, strips}},
      {Dense("7x7 512", 128, 7, 7, 512, 512, 3, 1, 1), 0.0557, {b, c, strips}},
      {Dense("28x28 256 stride 2", 128, 28, 28, 256, 256, 3, 2, 1), 0.0588, {b, c}},
      {Groups(Dense("16x16 64 each", 1, 16, 16, 64, 64, 3, 1, 1), 128, false, true, true, false), 0, {a, h}},
      {Groups(Dense("56x56 64 each", 1, 56, 56, 64, 64, 3, 1, 1), 16, false, true, true, false), 0, {a, h}},
      {Dense("16x16 64", 256, 16, 16, 64, 64, 3, 1, 1), 0.0268, {a, h, strips}},
      {Dense("8x8 64-128", 256, 8, 8, 64, 128, 3, 1, 1), 0.0206, {g, f, strips}},
  };
}

void TimeAll(Element result, int most_batch = 1 << 30, const std::vector<std::string>& names = {}) {
  for (const TimedCase& c : TimedCases()) {
    if (c.shape.batch > most_batch) continue;
    if (!names.empty() && std::find(names.begin(), names.end(), c.shape.name) == names.end()) continue;
    std::vector<int> tiles = {-1};
    if (result != Element::kF32) tiles.insert(tiles.end(), c.tiles.begin(), c.tiles.end());
    Time(c.shape, c.target, tiles, result);
  }
}

// Each case once, in the tile that its shape chooses: for a profiler.
void RunAll() {
  for (TimedCase c : TimedCases()) {
    c.shape.has_holes = false;
    Problem p = Make<__nv_bfloat16>(c.shape, Element::kBF16, false, false, 1, 0);
    Check(Run(p, nullptr, -1));
    CHECK(cudaDeviceSynchronize());
    Free(p);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const std::vector<std::string> names(argv + std::min(argc, 2), argv + argc);
  int failures = 0;
  if (what == "all" || what == "check") failures += CheckTiles();
  if (what == "few") failures += CheckFew(names);
  if (what == "random" && argc == 4) failures += CheckRandom(std::stoul(argv[2]), std::stoi(argv[3]));
  if (what == "all" || what == "chain") failures += CheckChains();
  if (what == "all" || what == "time") TimeAll(Element::kBF16, 1 << 30, names);
  if (what == "time32") TimeAll(Element::kF32);
  if (what == "small") TimeAll(Element::kBF16, 40);
  if (what == "once") RunAll();
  return failures > 0;
}
