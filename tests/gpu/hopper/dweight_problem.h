// A weight gradient's operands on the device, and its call.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "cuda_check.h"
#include "dweight_cases.h"
#include "hopper/dweight.h"

using namespace knnconv;
using check::Check;
using gpu::Element;

template <typename T>
T* Device(const std::vector<T>& values) {
  T* pointer;
  CHECK(cudaMalloc(&pointer, std::max<size_t>(values.size(), 1) * sizeof(T)));
  CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

// Taps of any case as a table: [outputs, neighbours] of sources (-1: a hole) and slots.
struct Taps {
  std::vector<int> indices, slots, offsets, rows, order_sources;
};

inline Taps TapsOf(const Case& c, std::mt19937& random) {
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

struct Problem {
  gpu::Dweight dweight = {};
  gpu::NeighborTable table = {};
  gpu::GroupStrides table_groups, offset_groups;  // orders have as many entries as the table
  gpu::DenseTaps dense = {};
  std::vector<int*> offsets, rows, sources;  // of each of the table's matrices, one behind the other
  Case shape;
  std::vector<Taps> taps;  // of each of them

  const Taps& TapsOf(int group) const { return taps[shape.MatrixOf(shape.own_table, group)]; }
};

// Of an operand whose matrices have `matrix` elements.
inline gpu::GroupStrides StridesOf(const Case& c, unsigned own, int64_t matrix) {
  gpu::GroupStrides strides;
  for (int d = 0; d < 3; ++d) strides.step[d] = c.StepOf(own, d) * matrix;
  return strides;
}

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
  CHECK(cudaMalloc(&values, count * sizeof(T)));
  Fill<<<1024, 256>>>(values, count, seed, positive);
  CHECK(cudaDeviceSynchronize());
  return values;
}

template <typename T>
Problem Make(const Case& c, Element out_type, bool zero_empty_rows, bool positive, unsigned seed, int64_t more_room) {
  Problem p;
  std::mt19937 random(seed);
  p.shape = c;
  const int64_t x_matrix = int64_t{c.batch} * c.sources * c.channels, x_count = c.MatricesOf(c.own_x);
  const int64_t g_matrix = int64_t{c.batch} * c.outputs * c.columns, g_count = c.MatricesOf(c.own_g);
  T* const x = Random<T>(x_count * x_matrix, 2 * seed, positive);
  const int64_t pitch = int64_t{c.sources} * c.channels * 2;
  if (c.is_table) CHECK(cudaMemset2D(x, pitch, 0xff, 2 * c.channels, x_count * c.batch));
  const int64_t table_matrix = int64_t{c.outputs} * c.neighbours;
  const int matrices = c.MatricesOf(c.own_table);
  std::vector<int> indices, slots, offsets, rows, sources;
  const auto append = [](const std::vector<int>& of, std::vector<int>* all) {
    all->insert(all->end(), of.begin(), of.end());
  };
  for (int i = 0; i < matrices; ++i) {
    p.taps.push_back(TapsOf(c, random));
    const Taps& taps = p.taps.back();
    append(taps.indices, &indices);
    append(taps.slots, &slots);
    append(taps.offsets, &offsets);
    append(taps.rows, &rows);
    append(taps.order_sources, &sources);
    rows.resize((i + 1) * table_matrix, INT32_MAX);  // entries behind the last tap are undefined
    sources.resize((i + 1) * table_matrix, INT32_MIN);
  }
  int *const all_offsets = Device(offsets), *const all_rows = Device(rows), *const all_sources = Device(sources);
  for (int i = 0; i < matrices; ++i) {
    p.offsets.push_back(all_offsets + int64_t{i} * 2 * (c.slots + 1));
    p.rows.push_back(all_rows + i * table_matrix);
    p.sources.push_back(all_sources + i * table_matrix);
  }
  p.table = {Device(indices), c.has_slots ? Device(slots) : nullptr, c.sources, c.outputs, c.neighbours, c.slots,
             zero_empty_rows && c.is_table};
  p.table_groups = StridesOf(c, c.own_table, table_matrix);
  p.offset_groups = StridesOf(c, c.own_table, 2 * (c.slots + 1));
  for (int d = 0; d < 2; ++d) {
    p.dense.in_size[d] = c.in[d], p.dense.out_size[d] = c.out[d], p.dense.stride[d] = c.stride[d];
    p.dense.padding[d] = c.padding[d], p.dense.dilation[d] = c.dilation[d];
  }
  p.dense.kernel_width = c.kernel[1];
  gpu::Dweight& w = p.dweight;
  w.x = x;
  w.g = Random<T>(g_count * g_matrix, 2 * seed + 1, positive);
  w.shapes.groups.rank = w.shapes.members.rank = 3;
  for (int d = 0; d < 3; ++d) {
    w.shapes.groups.size[d] = d < 2 ? c.dims[d] : 1;
    w.shapes.members.size[d] = d < 2 ? 1 : c.dims[d];
  }
  w.x_groups = StridesOf(c, c.own_x, x_matrix);
  w.g_groups = StridesOf(c, c.own_g, g_matrix);
  const int64_t one_weight = int64_t{c.slots} * c.channels * c.columns, weight = c.results() * one_weight;
  const int64_t one = c.results() * (one_weight + c.columns);
  w.partial_elements = one * (1 + std::max<int64_t>(1, std::min<int64_t>(1024, (1 << 23) / one))) + more_room;
  CHECK(cudaMalloc(&w.dw, weight * 4));
  CHECK(cudaMalloc(&w.db, c.results() * c.columns * 4));
  CHECK(cudaMalloc(&w.partials, w.partial_elements * 4));
  CHECK(cudaMemset(w.dw, 0xff, weight * 4));
  CHECK(cudaMemset(w.db, 0xff, c.results() * c.columns * 4));
  CHECK(cudaMemset(w.partials, 0xff, w.partial_elements * 4));
  w.x_type = w.g_type = gpu::ElementOf<T>::value;
  w.dw_type = out_type;
  w.db_type = Element::kF32;
  w.batch = c.batch;
  w.slots = c.slots;
  w.channels = c.channels;
  w.columns = c.columns;
  return p;
}

inline void Free(Problem& p) {
  for (const void* pointer : {p.dweight.x, p.dweight.g, static_cast<const void*>(p.dweight.dw),
                              static_cast<const void*>(p.dweight.db), static_cast<const void*>(p.dweight.partials),
                              static_cast<const void*>(p.table.indices), static_cast<const void*>(p.table.slots)}) {
    CHECK(cudaFree(const_cast<void*>(pointer)));
  }
  for (const auto* pointers : {&p.offsets, &p.rows, &p.sources}) CHECK(cudaFree(pointers->front()));
}

// What `use` makes of the problem's taps, which are of one of three types.
template <typename Use>
auto WithTaps(const Problem& p, const Use& use) {
  if (!p.shape.is_table) return use(p.dense);
  if (!p.shape.has_slots) return use(gpu::ColumnTaps{p.table, p.table_groups});
  return use(gpu::SlotTaps{p.table, p.offsets[0], p.rows[0], p.sources[0], p.table_groups, p.table_groups,
                           p.offset_groups, p.table_groups, p.table_groups});
}

inline bool Takes(const Problem& p) {
  gpu::Device device;
  Check(gpu::GetDevice(0, &device));
  hopper::DweightPlan plan;
  return WithTaps(p, [&](const auto& taps) { return hopper::ChooseDweight(p.dweight, taps, device, true, &plan); });
}

inline gpu::Status Run(const Problem& p, cudaStream_t stream, int tile) {
  gpu::Device device;
  Check(gpu::GetDevice(0, &device));
  return WithTaps(p, [&](const auto& taps) {
    const hopper::DweightPlan plan = hopper::PlanDweight(p.dweight, taps, device, tile);
    return hopper::RunDweight({stream, 0, false}, p.dweight, taps, plan);
  });
}

// Calls captured into a graph that is part of another one, as XLA does; for each of `problems` in turn, `calls` in all.
class Replay {
 public:
  Replay(const std::vector<Problem>& problems, int tile, int calls) {
    CHECK(cudaStreamCreate(&stream_));
    Check(Run(problems[0], stream_, tile));
    CHECK(cudaStreamSynchronize(stream_));
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) Check(Run(problems[i % problems.size()], stream_, tile));
    CHECK(cudaStreamEndCapture(stream_, &calls_));
    cudaGraphNode_t node;
    CHECK(cudaGraphCreate(&whole_, 0));
    CHECK(cudaGraphAddChildGraphNode(&node, whole_, nullptr, 0, calls_));
    CHECK(cudaGraphInstantiate(&replay_, whole_, 0));
  }
  ~Replay() {
    CHECK(cudaGraphExecDestroy(replay_));
    CHECK(cudaGraphDestroy(whole_));
    CHECK(cudaGraphDestroy(calls_));
    CHECK(cudaStreamDestroy(stream_));
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  cudaStream_t stream() const { return stream_; }
  void Launch() { CHECK(cudaGraphLaunch(replay_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraph_t calls_, whole_;
  cudaGraphExec_t replay_;
};
