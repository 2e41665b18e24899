// Runs the halo kernels for dweight on the CPU and compares with sums in double, tap by tap.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "gpu/halo_dweight.h"

using namespace knnconv::gpu;

namespace {

std::mt19937 random_bits(7);
int failures = 0;

// Small multiples of 1/16, so that fp32 sums are exact and results must be equal.
template <typename T>
std::vector<T> Values(int64_t count) {
  std::vector<T> values(count);
  for (T& value : values) value = T(static_cast<float>(std::uniform_int_distribution<int>(-16, 16)(random_bits)) / 16);
  return values;
}

// `slices`: how many of them partial sums have room for.
template <typename T, typename Source>
void Check(int64_t batch, const DenseTaps& taps, int kernel_height, int channels, int columns, int slices) {
  Dweight dweight{};
  dweight.batch = batch;
  dweight.slots = kernel_height * taps.kernel_width;
  dweight.channels = channels;
  dweight.columns = columns;
  dweight.x_type = ElementOf<Source>::value;
  dweight.g_type = ElementOf<T>::value;
  dweight.dw_type = dweight.db_type = Element::kF32;
  const int64_t sources = int64_t{taps.in_size[0]} * taps.in_size[1], outs = int64_t{taps.out_size[0]} * taps.out_size[1];
  const auto x = Values<Source>(batch * sources * channels);
  const auto g = Values<T>(batch * outs * columns);
  const int64_t size = int64_t{dweight.slots} * channels * columns;
  std::vector<double> exact(size + columns);
  for (int64_t p = 0; p < batch * outs; ++p) {
    const int64_t b = p / outs, i = p % outs / taps.out_size[1], j = p % taps.out_size[1];
    for (int o = 0; o < columns; ++o) exact[size + o] += double(float(g[p * columns + o]));
    for (int slot = 0; slot < dweight.slots; ++slot) {
      const int64_t h = i * taps.stride[0] + slot / taps.kernel_width * taps.dilation[0] - taps.padding[0];
      const int64_t w = j * taps.stride[1] + slot % taps.kernel_width * taps.dilation[1] - taps.padding[1];
      if (h < 0 || w < 0 || h >= taps.in_size[0] || w >= taps.in_size[1]) continue;
      for (int c = 0; c < channels; ++c) {
        for (int o = 0; o < columns; ++o) {
          exact[(int64_t{slot} * channels + c) * columns + o] +=
              double(float(x[(b * sources + h * taps.in_size[1] + w) * channels + c])) * float(g[p * columns + o]);
        }
      }
    }
  }
  std::vector<float> dw(size, NAN), db(columns, NAN), partials(slices * (size + columns), NAN);
  dweight.x = x.data();
  dweight.g = g.data();
  dweight.dw = dw.data();
  dweight.db = db.data();
  dweight.partials = partials.data();
  dweight.partial_elements = static_cast<int64_t>(partials.size());
  const Device device{4, 226 << 10};
  const Status status = RunHaloDweight({nullptr, 0, false}, dweight, taps, device);
  int64_t wrong = status.ok() ? 0 : 1;
  for (int64_t i = 0; i < size + columns; ++i) wrong += (i < size ? dw[i] : db[i - size]) != exact[i];
  if (wrong == 0) return;
  ++failures;
  std::printf("%d x %d pixels, %d -> %d, stride %d: %lld wrong %s\n", taps.in_size[0], taps.in_size[1], channels, columns,
              taps.stride[0], static_cast<long long>(wrong), status.call);
}

}  // namespace

int main() {
  Check<BFloat, BFloat>(3, {{9, 21}, {9, 21}, 3, {1, 1}, {1, 1}, {1, 1}}, 3, 16, 24, 9);
  Check<Half, Half>(2, {{19, 13}, {10, 5}, 2, {2, 3}, {1, 0}, {2, 1}}, 3, 8, 33, 1);
  Check<BFloat, float>(2, {{20, 18}, {9, 9}, 7, {2, 2}, {3, 2}, {1, 1}}, 7, 3, 70, 2);
  Check<Half, Half>(1, {{8, 8}, {8, 8}, 1, {1, 1}, {0, 0}, {1, 1}}, 1, 40, 8, 3);
  Check<BFloat, BFloat>(1, {{40, 40}, {38, 37}, 3, {1, 1}, {0, 0}, {1, 1}}, 3, 12, 32, 1);
  std::printf("%d failures\n", failures);
  return failures != 0;
}
