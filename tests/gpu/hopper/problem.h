// A case's operands on the device, and the taps of its nodes.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "cases.h"
#include "cuda_check.h"
#include "gpu/hub_sums.h"

template <typename T>
T* ToDevice(const std::vector<T>& host) {
  T* device = nullptr;
  CHECK(cudaMalloc(&device, std::max<size_t>(host.size(), 1) * sizeof(T)));
  CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

// Of a table, read in blocks of 16 bytes of which the last may be a part. Compute-sanitizer's memcheck takes such a
// copy for one of 16 bytes (partial_copy.cu): there is room for them.
inline int* TableToDevice(std::vector<int> host) {
  host.resize(host.size() + 3);
  return ToDevice(host);
}

// Taps of every node, one list after the other; of every group's nodes.
struct Lists {
  std::vector<int> begin, source, slot;
};

// What the kernels read, group after group, where each has a table of its own.
struct TableOperands {
  std::vector<int> sources, slots, offsets;
  size_t taps = 0;  // of a group; with room, where groups differ
};

struct Problem {
  Case c;
  TapGemm gemm;
  Lists lists;
  int *begin, *source, *slot;
  size_t source_elements, out_elements;
  std::vector<void*> sources, outs;  // copies to cycle through
  float* partials = nullptr;         // of hubs
};

inline void Fill(std::vector<uint16_t>* to, Element type, float scale, std::mt19937* rng) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> pool(65537);
  for (auto& v : pool) {
    const float value = normal(*rng);
    if (type == Element::kF16) {
      const __half h = __float2half(value);
      std::memcpy(&v, &h, 2);
    } else {
      const __nv_bfloat16 h = __float2bfloat16(value);
      std::memcpy(&v, &h, 2);
    }
  }
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] = pool[(i * 7919 + i / 65537) % 65537];
}

// The nearest of c.nodes random points in the unit square to the first c.source_rows of them, c.slots each.
inline std::vector<int> NearestOf(const Case& c, std::mt19937* rng) {
  std::uniform_real_distribution<float> uniform;
  std::vector<std::pair<float, float>> points(c.nodes);
  for (auto& [x, y] : points) x = uniform(*rng), y = uniform(*rng);
  std::vector<int> nearest;
  std::vector<std::pair<float, int>> by_distance(c.nodes);
  for (int m = 0; m < c.source_rows; ++m) {
    for (int n = 0; n < c.nodes; ++n) {
      const float x = points[n].first - points[m].first, y = points[n].second - points[m].second;
      by_distance[n] = {x * x + y * y, n};
    }
    std::partial_sort(by_distance.begin(), by_distance.begin() + c.slots, by_distance.end());
    for (int v = 0; v < c.slots; ++v) nearest.push_back(by_distance[v].second);
  }
  return nearest;
}

inline Lists ListsOf(const Case& c, std::vector<int>* table, std::vector<int>* slots, std::mt19937* rng) {
  Lists lists;
  lists.begin.push_back(0);
  if (c.kind == Taps::kSources && c.holes == 0) {  // by source; of a table of nearest neighbours, a random one if large
    std::vector<std::vector<std::pair<int, int>>> of(c.nodes);
    const bool nearest = size_t{1} * c.nodes * c.source_rows <= size_t{1} << 22;
    const std::vector<int> neighbours = nearest ? NearestOf(c, rng) : std::vector<int>();
    for (int v = 0; v < c.slots; ++v) {
      for (int m = 0; m < c.source_rows; ++m) {
        of[nearest ? neighbours[size_t{1} * m * c.slots + v] : (*rng)() % c.nodes].push_back({v, m});
      }
    }
    for (auto& list : of) {
      for (auto& [slot, source] : list) {
        lists.slot.push_back(slot);
        lists.source.push_back(source);
      }
      lists.begin.push_back(static_cast<int>(lists.source.size()));
    }
    return lists;
  }
  auto uniform = [&] { return std::uniform_real_distribution<double>()(*rng); };
  const int junk[] = {INT32_MIN, -50000000, -1, c.source_rows, c.source_rows + 1, INT32_MAX};
  for (int n = 0; n < c.nodes; ++n) {
    if (c.kind == Taps::kWindow) {
      const int oh = n / c.out[1], ow = n % c.out[1];
      for (int f = 0; f < c.kernel[0] * c.kernel[1]; ++f) {
        const int at[2] = {f / c.kernel[1], f % c.kernel[1]}, o[2] = {oh, ow};
        int s[2];
        bool exists = true;
        for (int d = 0; d < 2; ++d) {
          if (!c.transposed) {
            s[d] = o[d] * c.stride[d] + at[d] * c.dilation[d] - c.padding[d];
          } else {
            const int distance = o[d] + c.padding[d] - at[d] * c.dilation[d];
            exists = exists && distance % c.stride[d] == 0;
            s[d] = distance / c.stride[d];
          }
          exists = exists && s[d] >= 0 && s[d] < c.size[d];
        }
        if (!exists) continue;
        lists.source.push_back(s[0] * c.size[1] + s[1]);
        lists.slot.push_back(f);
      }
    } else if (c.kind == Taps::kSources) {
      int count = c.holes > 0 && n % 5 == 1 ? 0 : 1 + static_cast<int>((*rng)() % (2 * c.taps - 1));
      if (c.holes > 0 && n == 2) count = knnconv::gpu::kHubTaps + 1;
      if (c.holes > 0 && n == 3) count = knnconv::gpu::kHubTaps;
      if (c.holes > 0 && n == 4) count = 3 * knnconv::gpu::kHubTaps + 5;
      std::vector<int> s(count);
      const int first = c.slots_of_node > 0 ? static_cast<int>((*rng)() % c.slots) : 0;
      const int slots = c.slots_of_node > 0 ? std::min(c.slots_of_node, c.slots - first) : c.slots;
      for (int& v : s) v = first + static_cast<int>((*rng)() % slots);
      std::sort(s.begin(), s.end());
      for (int v : s) {
        lists.slot.push_back(v);
        lists.source.push_back(1 + (*rng)() % (c.source_rows - 1));
      }
    } else {
      std::vector<int> s(c.taps);
      for (int k = 0; k < c.taps; ++k) s[k] = c.kind == Taps::kColumns ? k : (*rng)() % c.slots;
      std::sort(s.begin(), s.end());
      for (int k = 0; k < c.taps; ++k) {
        int source = 1 + (*rng)() % (c.source_rows - 1), slot = s[k];
        const bool hole = uniform() < c.holes || (c.holes > 0 && n == 1);
        if (hole) source = junk[(*rng)() % 6];
        table->push_back(source);
        slots->push_back(slot);
        if (hole) continue;
        lists.source.push_back(source);
        lists.slot.push_back(slot);
      }
    }
    lists.begin.push_back(static_cast<int>(lists.source.size()));
  }
  return lists;
}

inline void Append(const Lists& one, Lists* all) {
  const int before = all->begin.empty() ? 0 : all->begin.back();
  if (!all->begin.empty()) all->begin.pop_back();
  for (int b : one.begin) all->begin.push_back(before + b);
  all->source.insert(all->source.end(), one.source.begin(), one.source.end());
  all->slot.insert(all->slot.end(), one.slot.begin(), one.slot.end());
}

// The lists of all groups, and the table that holds them.
inline Lists AllLists(const Case& c, TableOperands* table, std::mt19937* rng) {
  Lists all;
  std::vector<Lists> of(c.own_table ? c.groups : 1);
  for (Lists& one : of) {
    std::vector<int> sources, slots;
    one = ListsOf(c, &sources, &slots, rng);
    table->sources.insert(table->sources.end(), sources.begin(), sources.end());
    table->slots.insert(table->slots.end(), slots.begin(), slots.end());
    table->taps = std::max(table->taps, c.kind == Taps::kSources ? one.source.size() : sources.size());
  }
  for (int i = 0; i < c.groups; ++i) Append(of[c.own_table ? i : 0], &all);
  if (c.kind != Taps::kSources) return all;
  for (const Lists& one : of) {
    std::vector<int> sources = one.source, slots = one.slot;
    sources.resize(table->taps, -1);
    slots.resize(table->taps, -1);
    table->sources.insert(table->sources.end(), sources.begin(), sources.end());
    table->slots.insert(table->slots.end(), slots.begin(), slots.end());
    for (int b : one.begin) {
      table->offsets.push_back(b);
      table->offsets.push_back(0);
    }
  }
  return all;
}

// Strides of an operand whose matrices, or the one that all share, have `matrix` elements; an even number of groups is
// that of two dimensions.
inline void SetGroups(const Case& c, TapGemm* gemm) {
  knnconv::gpu::GroupShape& shape = gemm->groups;
  if (c.groups > 1) shape.size[shape.rank++] = c.groups % 2 == 0 ? c.groups / 2 : c.groups;
  if (c.groups % 2 == 0) shape.size[shape.rank++] = 2;
}
inline knnconv::gpu::GroupStrides StridesOf(const TapGemm& gemm, bool own, size_t matrix) {
  knnconv::gpu::GroupStrides strides;
  if (!own) return strides;
  int64_t step = static_cast<int64_t>(matrix);
  for (int i = gemm.groups.rank - 1; i >= 0; --i) {
    strides.step[i] = step;
    step *= gemm.groups.size[i];
  }
  return strides;
}

inline Problem Make(const Case& c, int copies) {
  std::mt19937 rng(7);
  Problem p{c};
  TableOperands table;
  p.lists = AllLists(c, &table, &rng);
  p.begin = ToDevice(p.lists.begin);
  p.source = ToDevice(p.lists.source);
  p.slot = ToDevice(p.lists.slot);
  const size_t sources = c.own_source ? c.groups : 1, weights = c.own_weight ? c.groups : 1;
  const size_t source_matrix = size_t{1} * c.batch * c.source_rows * c.depth;
  const size_t weight_matrix = size_t{1} * c.slots * c.depth * c.columns;
  p.source_elements = sources * source_matrix;
  p.out_elements = size_t{1} * c.groups * c.batch * c.nodes * c.columns;
  std::vector<uint16_t> x(p.source_elements), w(weights * weight_matrix);
  Fill(&x, c.type, 1.0f, &rng);
  Fill(&w, c.type, 0.05f, &rng);
  if (c.kind != Taps::kWindow && c.holes > 0) {  // no tap reads row 0
    const size_t entries = sources * c.batch;
    for (size_t b = 0; b < entries; ++b) std::fill_n(&x[b * c.source_rows * c.depth], c.depth, 0x7fff);
  }
  for (int i = 0; i < copies; ++i) {
    p.sources.push_back(ToDevice(x));
    void* out = nullptr;
    CHECK(cudaMalloc(&out, p.out_elements * 4 + 64));
    p.outs.push_back(out);
  }
  TapGemm& g = p.gemm;
  g = {};
  g.source = p.sources[0];
  g.weight = ToDevice(w);
  if (!c.transposed && c.has_bias) {
    std::vector<float> bias(weights * c.columns);
    for (float& b : bias) b = std::normal_distribution<float>()(rng);
    g.bias = ToDevice(bias);
  }
  g.out = p.outs[0];
  g.source_type = g.compute_type = c.type;
  g.out_type = c.out_type;
  g.transposed = c.transposed;
  g.zero_empty_rows = c.zero_empty;
  g.kind = c.kind;
  g.batch = c.batch;
  g.nodes = c.nodes;
  g.source_rows = c.source_rows;
  g.depth = c.depth;
  g.columns = c.columns;
  g.slots = c.slots;
  if (c.kind == Taps::kSources) {
    g.table.offsets = ToDevice(table.offsets);
    g.table.taps = static_cast<int64_t>(table.taps);
  } else if (c.kind != Taps::kWindow) {
    g.table.columns = c.taps;
  }
  if (c.kind != Taps::kWindow) g.table.sources = TableToDevice(table.sources);
  if (c.kind == Taps::kRows || c.kind == Taps::kSources) g.table.slots = TableToDevice(table.slots);
  SetGroups(c, &g);
  g.source_groups = StridesOf(g, c.own_source, source_matrix);
  g.weight_groups = StridesOf(g, c.own_weight, weight_matrix);
  g.bias_groups = StridesOf(g, c.own_weight, c.columns);
  g.table.source_groups = g.table.slot_groups = StridesOf(g, c.own_table, table.taps);
  g.table.offset_groups = StridesOf(g, c.own_table, 2 * (size_t{1} * c.nodes + 1));
  if (c.kind == Taps::kSources) {
    CHECK(cudaMalloc(&p.partials, std::max<int64_t>(knnconv::gpu::HubPartials(g, g.table.taps), 1) * sizeof(float)));
  }
  for (int d = 0; d < 2; ++d) {
    g.window.kernel[d] = c.kernel[d];
    g.window.stride[d] = c.stride[d];
    g.window.padding[d] = c.padding[d];
    g.window.dilation[d] = c.dilation[d];
    g.window.source_size[d] = c.size[d];
    g.window.out_size[d] = c.out[d];
  }
  g.window.transposed = c.transposed;
  return p;
}

inline void Free(Problem* p) {
  for (void* s : p->sources) cudaFree(s);
  for (void* s : p->outs) cudaFree(s);
  cudaFree(p->partials);
  cudaFree(p->begin), cudaFree(p->source), cudaFree(p->slot), cudaFree(const_cast<void*>(p->gemm.weight));
}
