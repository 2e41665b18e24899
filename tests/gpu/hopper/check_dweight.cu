// Holds Hopper's weight gradients to sums in double precision, tile by tile, and times them. Not part of the test
// suite: a program for work on the kernels, without JAX.
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I lib -DKNNCONV_HOPPER_POLLS='(1<<26)'
//         tests/gpu/hopper/check_dweight.cu lib/hopper/dweight*.cu lib/hopper/tensor_map.cc -o check_dweight
#include <cstdio>
#include <string>
#include <vector>

#include "dweight_times.h"
#include "dweight_values.h"

namespace {

int Tile(int warpgroups, int boxes, int columns, int taps = 1) {
  int i = 0;
  for (const auto& size : hopper::kDweightTiles) {
    if (size.warpgroups == warpgroups && size.warpgroup_boxes == boxes && size.columns == columns && size.taps == taps) {
      return i;
    }
    ++i;
  }
  std::exit(1);
}

int CheckTiles() {
  int failures = 0, checks = 0;
  for (int tile = -1; tile < hopper::kDweightTileCount; ++tile) {
    const bool has_strips = tile >= 0 && hopper::kDweightTiles[tile].has_strips();
    std::vector<Case> cases = has_strips ? StripCases() : ValueCases();
    if (tile < 0) {
      for (const Case& c : StripCases()) cases.push_back(c);
    }
    for (const Case& c : cases) {
      failures += CheckCase<__nv_bfloat16>(c, Element::kF32, tile, false);
      failures += CheckCase<__half>(c, tile % 2 == 0 ? Element::kF16 : Element::kBF16, tile, true);
      checks += 2;
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
  failures += CheckCase<__nv_bfloat16>(k1, Element::kF32, Tile(1, 1, 64), false, true);
  failures += CheckCase<__nv_bfloat16>(k9, Element::kF32, Tile(3, 1, 64), false, true);
  failures += CheckCase<__nv_bfloat16>(wide, Element::kF32, Tile(2, 1, 256), false, true);
  failures += CheckCase<__nv_bfloat16>(wide, Element::kBF16, Tile(2, 1, 256), false, true);
  failures += CheckCase<__nv_bfloat16>(dense, Element::kF32, Tile(3, 1, 64, 3), false, true);
  return failures;
}

void TimeAll(Element result) {
  const int a = Tile(3, 1, 64), b = Tile(2, 2, 128), c = Tile(2, 1, 256), d = Tile(3, 1, 128), e = Tile(3, 1, 192);
  const int f = Tile(2, 1, 128), g = Tile(1, 1, 128), h = Tile(1, 1, 64);
  const int low = Tile(3, 1, 64, 3), wide = Tile(2, 1, 128, 3);
  Time(Table("knn 64", 256, 64, 64, 1024, 1024, 9), 0.08, {-1, a}, result);
  Time(Table("knn 128", 256, 128, 128, 512, 512, 9), 0.098, {-1, b, d}, result);
  Time(Table("knn 256", 256, 256, 256, 256, 256, 9), 0.141, {-1, b, c}, result);
  Time(Table("knn 512", 256, 512, 512, 64, 64, 9), 0.113, {-1, b, c}, result);
  Time(Table("knn 256 K25", 128, 256, 256, 512, 256, 25), 0.157, {-1, b, c}, result);
  Time(Table("knn 96-256 K25", 128, 96, 256, 500, 230, 25), 0.2, {-1, c}, result);
  Time(Table("knn 256-384", 128, 256, 384, 230, 60, 9), 0.073, {-1, e, b}, result);
  Time(Table("knn 384-384", 128, 384, 384, 60, 60, 9), 0.111, {-1, e, b}, result);
  Time(Table("knn 16 nodes", 512, 256, 256, 16, 16, 9), 0.033, {-1, b, d}, result);
  Time(Table("knn 64 230", 128, 64, 64, 230, 230, 9), 0.011, {-1, a, h}, result);
  Time(Table("slots 64", 256, 64, 64, 1024, 1024, 9, 9), 0.09, {-1, h}, result);
  Time(Table("slots 128", 256, 128, 128, 512, 512, 9, 9), 0.098, {-1, f}, result);
  Time(Table("slots 256", 256, 256, 256, 256, 256, 9, 9), 0.141, {-1, b, c}, result);
  Time(Dense("56x56 64", 128, 56, 56, 64, 64, 3, 1, 1), 0.075, {-1, a, low}, result);
  Time(Dense("28x28 128", 128, 28, 28, 128, 128, 3, 1, 1), 0.061, {-1, b, d, low, wide}, result);
  Time(Dense("14x14 256", 128, 14, 14, 256, 256, 3, 1, 1), 0.0577, {-1, b, c, low, wide}, result);
  Time(Dense("7x7 512", 128, 7, 7, 512, 512, 3, 1, 1), 0.0557, {-1, b, c, low, wide}, result);
  Time(Dense("28x28 256 stride 2", 128, 28, 28, 256, 256, 3, 2, 1), 0.0588, {-1, b, c}, result);
  Time(Dense("16x16 64", 256, 16, 16, 64, 64, 3, 1, 1), 0.0268, {-1, a, h, low}, result);
  Time(Dense("8x8 64-128", 256, 8, 8, 64, 128, 3, 1, 1), 0.0206, {-1, g, f, low, wide}, result);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  int failures = 0;
  if (what == "all" || what == "check") failures += CheckTiles();
  if (what == "all" || what == "chain") failures += CheckChains();
  if (what == "all" || what == "time") TimeAll(Element::kBF16);
  if (what == "time32") TimeAll(Element::kF32);
  return failures > 0;
}
