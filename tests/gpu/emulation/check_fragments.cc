// Loads, multiplies and stores fragments in every order of tiles, and compares with sums in double. Tiles lie in memory of
// exactly their size.
#include "gpu/fragment.h"

#include "check.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

constexpr int kSize = kFragment;

// Elements from a tile's first to past its last.
size_t Extent(int pitch) { return static_cast<size_t>(kSize - 1) * pitch + kSize; }

template <typename T, Major kMajorA, Major kMajorB>
void CheckOrder(const std::string& name, int pitch, int out_pitch) {
  constexpr int kWarps = 2, kProducts = 3;
  const auto a = Values<T>(kWarps * kProducts * Extent(pitch)), b = Values<T>(kWarps * kProducts * Extent(pitch));
  const auto wide_a = ToFloats(a), wide_b = ToFloats(b);
  const float initial = 0.5f;
  for (const Setting& setting : kSettings) {
    std::vector<Array<float>> out(kWarps, Unwritten(Extent(out_pitch)));
    Use(setting);
    plain::RunGrid(1, kWarps * kWarpSize, 0, [&] {
      const int warp = threadIdx.x / kWarpSize;
      Accumulator acc;
      FillAccumulator(acc, initial);
      for (int i = 0; i < kProducts; ++i) {
        const size_t at = (warp * kProducts + i) * Extent(pitch);
        FragmentA<T, kMajorA> left;
        FragmentB<T, kMajorB> right;
        LoadFragment(left, a.data() + at, pitch);
        LoadFragment(right, b.data() + at, pitch);
        MultiplyAdd(acc, left, right);
      }
      StoreAccumulator(out[warp].data(), acc, out_pitch);
    });
    for (int warp = 0; warp < kWarps; ++warp) {
      std::vector<float> got;
      std::vector<double> expected;
      for (int i = 0; i < kSize; ++i) {
        for (int j = 0; j < kSize; ++j) {
          double sum = initial;
          for (int product = 0; product < kProducts; ++product) {
            const size_t at = (warp * kProducts + product) * Extent(pitch);
            for (int k = 0; k < kSize; ++k) {
              sum += double{wide_a[at + (kMajorA == Major::kRow ? i * pitch + k : k * pitch + i)]} *
                     wide_b[at + (kMajorB == Major::kRow ? k * pitch + j : j * pitch + k)];
            }
          }
          expected.push_back(sum);
          got.push_back(out[warp][i * out_pitch + j]);
        }
      }
      Compare(name + ", pitch " + std::to_string(pitch), got, expected);
    }
  }
}

template <typename T>
void CheckType(const std::string& name) {
  for (int pitch : {16, 24, 40}) {
    CheckOrder<T, Major::kRow, Major::kRow>(name + " row, row", pitch, 20);
    CheckOrder<T, Major::kRow, Major::kCol>(name + " row, column", pitch, 16);
    CheckOrder<T, Major::kCol, Major::kRow>(name + " column, row", pitch, 36);
    CheckOrder<T, Major::kCol, Major::kCol>(name + " column, column", pitch, 16);
  }
}

}  // namespace

int main() {
  CheckType<Half>("float16");
  CheckType<BFloat>("bfloat16");
  return Result();
}
