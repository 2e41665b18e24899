// Holds Hopper's weight gradients to sums in double precision, tile by tile, and times them. Not part of the test
// suite: a program for work on the kernels, without JAX.
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I lib -DKNNCONV_HOPPER_POLLS='(1<<26)'
//         tests/gpu/hopper/check_dweight.cu lib/hopper/dweight*.c* lib/hopper/tensor_map.cc -o check_dweight
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "hopper/dweight.h"
#include "hopper/dweight_launch.h"

namespace {

using namespace knnconv;
using gpu::Element;

#define CHECK_CUDA(call)                                                                          \
  do {                                                                                            \
    if (const cudaError_t code = (call); code != cudaSuccess) {                                   \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code));         \
      std::exit(1);                                                                               \
    }                                                                                             \
  } while (0)

void Check(const gpu::Status& status) {
  if (status.ok()) return;
  std::printf("%s:%d %s: %s\n", status.file, status.line, status.call, cudaGetErrorString(status.code));
  std::exit(1);
}

template <typename T>
T* Device(const std::vector<T>& values) {
  T* pointer;
  CHECK_CUDA(cudaMalloc(&pointer, std::max<size_t>(values.size(), 1) * sizeof(T)));
  CHECK_CUDA(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

struct Case {
  std::string name;
  bool is_table, has_slots, has_holes;
  int batch, channels, columns;
  int sources, outputs, neighbours, slots;                            // of a table
  int in[2], kernel[2], stride[2], padding[2], dilation[2], out[2];  // of a dense convolution
};

Case Table(std::string name, int batch, int c, int o, int n, int m, int k, int v = 0) {
  Case t = {};
  t.name = name;
  t.is_table = true;
  t.has_slots = v > 0;
  t.has_holes = true;
  t.batch = batch, t.channels = c, t.columns = o;
  t.sources = n, t.outputs = m, t.neighbours = k, t.slots = v > 0 ? v : k;
  return t;
}

Case Dense(std::string name, int batch, int h, int w, int c, int o, int f, int stride, int pad, int dilation = 1) {
  Case t = {};
  t.name = name;
  t.batch = batch, t.channels = c, t.columns = o, t.slots = f * f;
  const int in[2] = {h, w};
  for (int d = 0; d < 2; ++d) {
    t.in[d] = in[d], t.kernel[d] = f, t.stride[d] = stride, t.padding[d] = pad, t.dilation[d] = dilation;
    t.out[d] = (in[d] + 2 * pad - (f - 1) * dilation - 1) / stride + 1;
  }
  t.sources = h * w;
  t.outputs = t.out[0] * t.out[1];
  t.neighbours = t.slots;
  return t;
}

// Taps of any case as a table: [outputs, neighbours] of sources (-1: a hole) and slots.
struct Taps {
  std::vector<int> indices, slots, offsets, rows, order_sources;
};

Taps TapsOf(const Case& c, std::mt19937& random) {
  Taps taps;
  std::vector<std::vector<std::pair<int, int>>> by_slot(c.slots);
  for (int m = 0; m < c.outputs; ++m) {
    const bool empty = c.has_holes && m % 11 == 5;
    for (int k = 0; k < c.neighbours; ++k) {
      int source, slot = k;
      if (c.is_table) {
        // Source 0 is read by nobody: its values are NaN.
        source = 1 + static_cast<int>(random() % (c.sources - 1));
        if (c.has_slots) slot = static_cast<int>(random() % c.slots);
        if (c.has_slots && c.has_holes) slot += static_cast<int>(random() % 3) - 1;
        const int junk[] = {-1, c.sources, INT32_MIN, INT32_MAX, -50000000, c.sources + 1};
        if (empty || (c.has_holes && random() % 16 == 0)) source = junk[random() % 6];
      } else {
        const int i = m / c.out[1], j = m % c.out[1];
        const int h = i * c.stride[0] + k / c.kernel[1] * c.dilation[0] - c.padding[0];
        const int w = j * c.stride[1] + k % c.kernel[1] * c.dilation[1] - c.padding[1];
        source = h >= 0 && h < c.in[0] && w >= 0 && w < c.in[1] ? h * c.in[1] + w : -1;
      }
      taps.indices.push_back(source);
      taps.slots.push_back(slot);
      if (source >= 0 && source < c.sources && slot >= 0 && slot < c.slots) by_slot[slot].push_back({m, source});
    }
  }
  for (int v = 0; v < c.slots; ++v) {
    taps.offsets.push_back(static_cast<int>(taps.rows.size()));
    taps.offsets.push_back(0);
    for (const auto& [row, source] : by_slot[v]) {
      taps.rows.push_back(row);
      taps.order_sources.push_back(source);
    }
  }
  taps.offsets.push_back(static_cast<int>(taps.rows.size()));
  taps.offsets.push_back(0);
  return taps;
}

template <typename T>
__global__ void Naive(const T* x, const T* g, const int* offsets, const int* rows, const int* sources, int batch, int n,
                      int m, int channels, int columns, double* dw, double* size) {
  const int o = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y, v = blockIdx.z;
  if (o >= columns) return;
  double sum = 0, total = 0;
  for (int tap = offsets[2 * v]; tap < offsets[2 * v + 2]; ++tap) {
    for (int b = 0; b < batch; ++b) {
      const double product = double(gpu::ToFloat(x[(int64_t{b} * n + sources[tap]) * channels + c])) *
                             double(gpu::ToFloat(g[(int64_t{b} * m + rows[tap]) * columns + o]));
      sum += product;
      total += fabs(product);
    }
  }
  const int64_t at = (int64_t{v} * channels + c) * columns + o;
  dw[at] = sum;
  size[at] = total;
}

struct Problem {
  gpu::Dweight dweight = {};
  gpu::NeighborTable table = {};
  gpu::DenseTaps dense = {};
  int *offsets, *rows, *sources;
  Case shape;
  Taps taps;
};

// Sums of four uniform numbers, with a mean of 0 or, where `positive`, all above 0.
template <typename T>
__global__ void Fill(T* values, int64_t count, uint64_t seed, bool positive) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t z = (static_cast<uint64_t>(i) + seed * 0x1000000000) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>(z >> 16 * k & 0xffff) / 65536;
    values[i] = gpu::FromFloat<T>(positive ? sum : (sum - 2) * 1.7f);
  }
}

template <typename T>
T* Random(int64_t count, uint64_t seed, bool positive) {
  T* values;
  CHECK_CUDA(cudaMalloc(&values, count * sizeof(T)));
  Fill<<<1024, 256>>>(values, count, seed, positive);
  CHECK_CUDA(cudaDeviceSynchronize());
  return values;
}

template <typename T>
Problem Make(const Case& c, Element out_type, bool zero_empty_rows, bool positive, unsigned seed, int64_t more_room) {
  Problem p;
  std::mt19937 random(seed);
  p.shape = c;
  p.taps = TapsOf(c, random);
  T* const x = Random<T>(int64_t{c.batch} * c.sources * c.channels, 2 * seed, positive);
  const int64_t pitch = int64_t{c.sources} * c.channels * 2;
  if (c.is_table) CHECK_CUDA(cudaMemset2D(x, pitch, 0xff, 2 * c.channels, c.batch));
  p.offsets = Device(p.taps.offsets);
  p.rows = Device(p.taps.rows);
  p.sources = Device(p.taps.order_sources);
  p.table = {Device(p.taps.indices), c.has_slots ? Device(p.taps.slots) : nullptr, c.sources, c.outputs, c.neighbours,
             c.slots, zero_empty_rows && c.is_table};
  for (int d = 0; d < 2; ++d) {
    p.dense.in_size[d] = c.in[d], p.dense.out_size[d] = c.out[d], p.dense.stride[d] = c.stride[d];
    p.dense.padding[d] = c.padding[d], p.dense.dilation[d] = c.dilation[d];
  }
  p.dense.kernel_width = c.kernel[1];
  gpu::Dweight& w = p.dweight;
  w.x = x;
  w.g = Random<T>(int64_t{c.batch} * c.outputs * c.columns, 2 * seed + 1, positive);
  const int64_t weight = int64_t{c.slots} * c.channels * c.columns, one = weight + c.columns;
  w.partial_elements = one * (1 + std::max<int64_t>(1, std::min<int64_t>(1024, (1 << 23) / one))) + more_room;
  CHECK_CUDA(cudaMalloc(&w.dw, weight * 4));
  CHECK_CUDA(cudaMalloc(&w.db, c.columns * 4));
  CHECK_CUDA(cudaMalloc(&w.partials, w.partial_elements * 4));
  CHECK_CUDA(cudaMemset(w.dw, 0xff, weight * 4));
  CHECK_CUDA(cudaMemset(w.db, 0xff, c.columns * 4));
  CHECK_CUDA(cudaMemset(w.partials, 0xff, w.partial_elements * 4));
  w.x_type = w.g_type = gpu::ElementOf<T>::value;
  w.dw_type = out_type;
  w.db_type = Element::kF32;
  w.batch = c.batch;
  w.slots = c.slots;
  w.channels = c.channels;
  w.columns = c.columns;
  return p;
}

void Free(Problem& p) {
  for (const void* pointer : {p.dweight.x, p.dweight.g, static_cast<const void*>(p.dweight.dw),
                              static_cast<const void*>(p.dweight.db), static_cast<const void*>(p.dweight.partials),
                              static_cast<const void*>(p.offsets), static_cast<const void*>(p.rows),
                              static_cast<const void*>(p.sources), static_cast<const void*>(p.table.indices),
                              static_cast<const void*>(p.table.slots)}) {
    CHECK_CUDA(cudaFree(const_cast<void*>(pointer)));
  }
}

// What `use` makes of the problem's taps, which are of one of three types.
template <typename Use>
auto WithTaps(const Problem& p, const Use& use) {
  if (!p.shape.is_table) return use(p.dense);
  if (!p.shape.has_slots) return use(gpu::ColumnTaps{p.table, {}});
  return use(gpu::SlotTaps{p.table, p.offsets, p.rows, p.sources, {}, {}, {}, {}, {}});
}

bool Takes(const Problem& p) {
  gpu::Device device;
  Check(gpu::GetDevice(0, &device));
  hopper::DweightPlan plan;
  return WithTaps(p, [&](const auto& taps) { return hopper::ChooseDweight(p.dweight, taps, device, true, &plan); });
}

gpu::Status Run(const Problem& p, cudaStream_t stream, int tile) {
  gpu::Device device;
  Check(gpu::GetDevice(0, &device));
  return WithTaps(p, [&](const auto& taps) {
    const hopper::DweightPlan plan = hopper::PlanDweight(p.dweight, taps, device, tile);
    return hopper::RunDweight({stream, 0, false}, p.dweight, taps, plan);
  });
}

float ToHost(const std::vector<unsigned char>& bytes, Element type, int64_t at) {
  if (type == Element::kF32) return reinterpret_cast<const float*>(bytes.data())[at];
  if (type == Element::kF16) return __half2float(reinterpret_cast<const __half*>(bytes.data())[at]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(bytes.data())[at]);
}

// Prints what is off, errors in eps32 of the sum of absolute products; 1 where something is.
template <typename T>
int CheckCase(const Case& c, Element out_type, int tile, bool zero_empty_rows, bool positive = false) {
  // Room for forced tiles that waste some.
  Problem p = Make<T>(c, out_type, zero_empty_rows, positive, 1, tile < 0 ? 0 : 1 << 26);
  const int64_t weight = int64_t{c.slots} * c.channels * c.columns;
  if (!Takes(p)) {
    std::printf("NOT TAKEN %s\n", c.name.c_str());
    return 1;
  }
  double *exact, *size;
  CHECK_CUDA(cudaMalloc(&exact, weight * 8));
  CHECK_CUDA(cudaMalloc(&size, weight * 8));
  Naive<<<dim3((c.columns + 63) / 64, c.channels, c.slots), 64>>>(
      static_cast<const T*>(p.dweight.x), static_cast<const T*>(p.dweight.g), p.offsets, p.rows, p.sources, c.batch,
      c.sources, c.outputs, c.channels, c.columns, exact, size);
  CHECK_CUDA(cudaDeviceSynchronize());
  Check(Run(p, nullptr, tile));
  const cudaError_t ran = cudaDeviceSynchronize();
  if (ran != cudaSuccess) {
    std::printf("FAILED %s tile %d: %s\n", c.name.c_str(), tile, cudaGetErrorString(ran));
    std::exit(1);
  }
  std::vector<unsigned char> dw(weight * 4), again(weight * 4);
  std::vector<double> want(weight), bound(weight);
  std::vector<float> db(c.columns);
  CHECK_CUDA(cudaMemcpy(dw.data(), p.dweight.dw, weight * 4, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(db.data(), p.dweight.db, c.columns * 4, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(want.data(), exact, weight * 8, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(bound.data(), size, weight * 8, cudaMemcpyDeviceToHost));
  Check(Run(p, nullptr, tile));
  CHECK_CUDA(cudaMemcpy(again.data(), p.dweight.dw, weight * 4, cudaMemcpyDeviceToHost));
  const double eps = std::ldexp(1.0, -23);
  const double ulp = out_type == Element::kF32 ? 0 : out_type == Element::kF16 ? 0x1p-10 : 0x1p-7;
  double worst = 0;
  int64_t wrong = 0, first = -1;
  for (int64_t i = 0; i < weight; ++i) {
    const double error = std::fabs(ToHost(dw, out_type, i) - want[i]);
    const double ratio = std::max(0.0, error - ulp * std::fabs(want[i])) / (eps * bound[i] + 1e-30);
    if (!(ratio <= 64)) {
      if (first < 0) first = i;
      ++wrong;
    } else {
      worst = std::max(worst, ratio);
    }
  }
  std::vector<T> g(size_t(c.batch) * c.outputs * c.columns);
  CHECK_CUDA(cudaMemcpy(g.data(), p.dweight.g, g.size() * sizeof(T), cudaMemcpyDeviceToHost));
  int64_t bias_wrong = 0;
  double bias_worst = 0;
  for (int o = 0; o < c.columns; ++o) {
    double sum = 0, total = 0;
    for (int m = 0; m < c.outputs; ++m) {
      bool counts = !p.table.zero_empty_rows;
      for (int k = 0; k < c.neighbours && !counts; ++k) {
        const size_t tap = size_t(m) * c.neighbours + k;
        const int source = p.taps.indices[tap], slot = p.taps.slots[tap];
        counts = source >= 0 && source < c.sources && slot >= 0 && slot < c.slots;
      }
      if (!counts) continue;
      for (int b = 0; b < c.batch; ++b) {
        const double value = static_cast<float>(g[(size_t(b) * c.outputs + m) * c.columns + o]);
        sum += value;
        total += std::fabs(value);
      }
    }
    const double ratio = std::fabs(db[o] - sum) / (eps * total + 1e-30);
    if (!(ratio <= 8)) ++bias_wrong;
    bias_worst = std::max(bias_worst, ratio);
  }
  const bool same = dw == again;
  if (wrong > 0 || bias_wrong > 0 || !same || positive) {
    const char* const verdict = wrong > 0 || bias_wrong > 0 || !same ? "WRONG" : "right";
    std::printf("%s %s tile %d out %d: %ld of %ld dw wrong", verdict, c.name.c_str(), tile, static_cast<int>(out_type),
                long(wrong), long(weight));
    if (first >= 0) {
      std::printf(" (first [%ld, %ld, %ld]: %g, want %g)", long(first / c.columns / c.channels),
                  long(first / c.columns % c.channels), long(first % c.columns), ToHost(dw, out_type, first),
                  want[first]);
    }
    std::printf(", %ld db wrong, same bits %d, worst %.2f db %.2f\n", long(bias_wrong), same, worst, bias_worst);
  }
  CHECK_CUDA(cudaFree(exact));
  CHECK_CUDA(cudaFree(size));
  Free(p);
  return wrong > 0 || bias_wrong > 0 || !same;
}

double Milliseconds(std::vector<Problem>& sets, int tile) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CHECK_CUDA(cudaStreamCreate(&stream));
  Check(Run(sets[0], stream, tile));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  constexpr int kCalls = 12;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kCalls; ++i) Check(Run(sets[i % sets.size()], stream, tile));
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int round = 0; round < 9; ++round) {
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(replay, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms / kCalls);
  }
  std::sort(times.begin(), times.end());
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return times[times.size() / 2];
}

void Time(Case c, double target, const std::vector<int>& tiles, Element result) {
  c.has_holes = false;
  std::vector<Problem> sets;
  for (int i = 0; i < 3; ++i) {
    sets.push_back(Make<__nv_bfloat16>(c, result, false, false, i + 1, 0));
  }
  const double flops = 2.0 * c.batch * c.outputs * c.neighbours * c.channels * c.columns;
  std::printf("%-22s target %.4f:", c.name.c_str(), target);
  for (int tile : tiles) {
    if (result == Element::kF32 && tile >= 0) continue;
    const double ms = Milliseconds(sets, tile);
    if (tile < 0) {
      std::printf(" chosen %.4f (%.0f TFLOP/s)", ms, flops / ms / 1e9);
    } else {
      const auto& size = hopper::kDweightTiles[tile];
      std::printf("  %d,%d,%d %.4f", size.warpgroups, size.warpgroup_boxes, size.columns, ms);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
  for (Problem& p : sets) Free(p);
}

int Tile(int warpgroups, int boxes, int columns) {
  int i = 0;
  for (const auto& size : hopper::kDweightTiles) {
    if (size.warpgroups == warpgroups && size.warpgroup_boxes == boxes && size.columns == columns) return i;
    ++i;
  }
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const int kTiles = sizeof(hopper::kDweightTiles) / sizeof(hopper::kDweightTiles[0]);
  int failures = 0;
  if (what == "all" || what == "check") {
    const std::vector<Case> cases = {
        Table("columns", 70, 72, 88, 41, 37, 9),
        Table("columns_wide", 33, 200, 328, 23, 45, 5),
        Table("columns_deep", 96, 64, 64, 300, 257, 9),
        Table("slots", 70, 72, 88, 41, 37, 9, 7),
        Table("slots_many", 40, 136, 200, 41, 60, 5, 150),
        Dense("dense", 5, 13, 9, 64, 64, 3, 1, 1),
        Dense("dense_ragged", 7, 9, 14, 72, 136, 3, 2, 1),
        Dense("dense_dilated", 3, 20, 17, 48, 96, 3, 1, 2, 2),
        Dense("dense_1x1", 3, 8, 8, 128, 264, 1, 1, 0),
        Dense("dense_negative", 3, 19, 12, 56, 64, 2, 3, -2),
        Table("narrow", 5, 8, 24, 30, 20, 3),
        Dense("dense_narrow", 2, 6, 40, 16, 8, 3, 1, 1),
    };
    for (int tile = -1; tile < kTiles; ++tile) {
      for (const Case& c : cases) {
        failures += CheckCase<__nv_bfloat16>(c, Element::kF32, tile, false);
        failures += CheckCase<__half>(c, tile % 2 == 0 ? Element::kF16 : Element::kBF16, tile, true);
      }
    }
    std::printf("%d failures in %zu checks\n", failures, 2 * cases.size() * (kTiles + 1));
  }
  if (what == "all" || what == "chain") {
    const Case k1 = Table("positive K1", 256, 64, 64, 64, 4096, 1), k9 = Table("positive K9", 256, 64, 64, 64, 4096, 9);
    const Case wide = Table("positive 256", 128, 128, 256, 64, 512, 9);
    failures += CheckCase<__nv_bfloat16>(k1, Element::kF32, Tile(1, 1, 64), false, true);
    failures += CheckCase<__nv_bfloat16>(k9, Element::kF32, Tile(3, 1, 64), false, true);
    failures += CheckCase<__nv_bfloat16>(wide, Element::kF32, Tile(2, 1, 256), false, true);
    failures += CheckCase<__nv_bfloat16>(wide, Element::kBF16, Tile(2, 1, 256), false, true);
  }
  if (what == "all" || what == "time" || what == "time32") {
    const Element result = what == "time32" ? Element::kF32 : Element::kBF16;
    const int a = Tile(3, 1, 64), b = Tile(2, 2, 128), c = Tile(2, 1, 256), d = Tile(3, 1, 128), e = Tile(3, 1, 192);
    const int f = Tile(2, 1, 128), g = Tile(1, 1, 128), h = Tile(1, 1, 64);
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
    Time(Dense("56x56 64", 128, 56, 56, 64, 64, 3, 1, 1), 0.075, {-1, a}, result);
    Time(Dense("28x28 128", 128, 28, 28, 128, 128, 3, 1, 1), 0.061, {-1, b, d}, result);
    Time(Dense("14x14 256", 128, 14, 14, 256, 256, 3, 1, 1), 0.0577, {-1, b, c}, result);
    Time(Dense("7x7 512", 128, 7, 7, 512, 512, 3, 1, 1), 0.0557, {-1, b, c}, result);
    Time(Dense("28x28 256 stride 2", 128, 28, 28, 256, 256, 3, 2, 1), 0.0588, {-1, b, c}, result);
    Time(Dense("16x16 64", 256, 16, 16, 64, 64, 3, 1, 1), 0.0268, {-1, a, h}, result);
    Time(Dense("8x8 64-128", 256, 8, 8, 64, 128, 3, 1, 1), 0.0206, {-1, g, f}, result);
  }
  return failures > 0;
}
