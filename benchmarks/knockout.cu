// Times the portable kernels on fixed shapes: one line "name milliseconds" each. Built by knockout.py from lib/gpu, whole
// and with a part of the main loops left out. Results are not looked at.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "gpu/dweight.h"
#include "gpu/tap_gemm.h"

namespace {

using namespace knnconv::gpu;

constexpr int kWarmUps = 3, kLaunches = 20, kRepeats = 5;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "knockout: %s failed\n", what);
  std::exit(1);
}

template <typename T>
T* ToDevice(const std::vector<T>& values) {
  T* device = nullptr;
  Check(cudaMalloc(&device, values.size() * sizeof(T)) == cudaSuccess, "cudaMalloc");
  Check(cudaMemcpy(device, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess, "copy");
  return device;
}

// Random numbers of either sign around 1: what products cost depends on their bits.
void* RandomBFloats(int64_t count) {
  std::mt19937 random(1);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = static_cast<uint16_t>((random() & 0x807f) | 0x3f80);
  return ToDevice(values);
}

int32_t* RandomTable(int64_t count, int sources) {
  std::mt19937 random(2);
  std::vector<int32_t> values(count);
  for (int32_t& value : values) value = static_cast<int32_t>(random() % sources);
  return ToDevice(values);
}

template <typename Call>
void Time(const char* name, const Call& call) {
  for (int i = 0; i < kWarmUps; ++i) Check(call().ok(), name);
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess, "cudaEventCreate");
  float least = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    cudaEventRecord(begin);
    for (int i = 0; i < kLaunches; ++i) call();
    cudaEventRecord(end);
    Check(cudaEventSynchronize(end) == cudaSuccess, name);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (repeat == 0 || milliseconds < least) least = milliseconds;
  }
  std::printf("%s %.6f\n", name, least / kLaunches);
}

struct Sizes {
  int batch, channels, columns, sources, nodes, slots;
};

struct Operands {
  explicit Operands(const Sizes& s)
      : x(RandomBFloats(int64_t{s.batch} * s.sources * s.channels)),
        g(RandomBFloats(int64_t{s.batch} * s.nodes * s.columns)),
        weight(RandomBFloats(int64_t{s.slots} * s.channels * s.columns)),
        partials(ToDevice(std::vector<float>(kPartials))) {}
  ~Operands() {
    for (void* operand : {x, g, weight, static_cast<void*>(partials)}) cudaFree(operand);
  }

  static constexpr int64_t kPartials = 8 << 20;
  void *x, *g, *weight;
  float* partials;
};

// Results overwrite g, or weight.
TapGemm Forward(const Sizes& s, const Operands& operands) {
  TapGemm gemm = {};
  gemm.source = operands.x;
  gemm.weight = operands.weight;
  gemm.out = operands.g;
  gemm.source_type = gemm.compute_type = gemm.out_type = Element::kBF16;
  gemm.batch = s.batch;
  gemm.nodes = s.nodes;
  gemm.source_rows = s.sources;
  gemm.depth = s.channels;
  gemm.columns = s.columns;
  gemm.slots = s.slots;
  return gemm;
}

Dweight Gradient(const Sizes& s, const Operands& operands) {
  Dweight dweight = {};
  dweight.x = operands.x;
  dweight.g = operands.g;
  dweight.dw = operands.weight;
  dweight.partials = operands.partials;
  dweight.partial_elements = Operands::kPartials;
  dweight.x_type = dweight.g_type = dweight.dw_type = dweight.db_type = Element::kBF16;
  dweight.batch = s.batch;
  dweight.slots = s.slots;
  dweight.channels = s.channels;
  dweight.columns = s.columns;
  return dweight;
}

void TimeKnn(const char* forward, const char* gradient, const Sizes& s) {
  const LaunchSite site{nullptr, 0, false};
  const Operands operands(s);
  int32_t* const table = RandomTable(int64_t{s.nodes} * s.slots, s.sources);
  TapGemm gemm = Forward(s, operands);
  gemm.kind = Taps::kColumns;
  gemm.table.sources = table;
  gemm.table.columns = s.slots;
  Time(forward, [&] { return RunTapGemm(site, gemm, {}); });
  const ColumnTaps taps{{table, nullptr, s.sources, s.nodes, s.slots, s.slots, false}, {}};
  Time(gradient, [&] { return RunDweight(site, Gradient(s, operands), taps, {}); });
  cudaFree(table);
}

// 3x3 with a padding of 1.
void TimeDense(const char* forward, const char* gradient, int batch, int side, int channels, int columns) {
  const LaunchSite site{nullptr, 0, false};
  const Sizes s{batch, channels, columns, side * side, side * side, 9};
  const Operands operands(s);
  TapGemm gemm = Forward(s, operands);
  gemm.kind = Taps::kWindow;
  gemm.window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {side, side}, {side, side}, false};
  Time(forward, [&] { return RunTapGemm(site, gemm, {}); });
  const DenseTaps taps{{side, side}, {side, side}, 3, {1, 1}, {1, 1}, {1, 1}};
  Time(gradient, [&] { return RunDweight(site, Gradient(s, operands), taps, {}); });
}

}  // namespace

int main() {
  TimeKnn("knn_forward_64", "knn_dweight_64", {256, 64, 64, 1024, 1024, 9});
  TimeKnn("knn_forward_256", "knn_dweight_256", {256, 256, 256, 256, 256, 9});
  TimeDense("dense_forward_64", "dense_dweight_64", 128, 56, 64, 64);
  TimeDense("dense_forward_256", "dense_dweight_256", 128, 14, 256, 256);
  return 0;
}
