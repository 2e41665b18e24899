// Holds the results of a TapGemm to one thread a result in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "problem.h"

__device__ inline double At(const void* data, Element type, size_t i) {
  return knnconv::gpu::LoadElement(data, type, static_cast<int64_t>(i));
}

// Checks out[b, n, o] for rows (b, n) = 0, step, ...; counts what is wrong and keeps one of them. `hubs`: whether
// hubs have been summed.
__global__ void Compare(TapGemm g, const int* begin, const int* source, const int* slot, size_t step, size_t rows,
                        bool hubs, unsigned long long* wrong, double* worst) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * g.columns) return;
  const int o = i % g.columns;
  const size_t row = i / g.columns * step, n = row % g.nodes, b = row / g.nodes, group = b / g.batch;
  const auto matrix = [&](const knnconv::gpu::GroupStrides& strides) -> size_t {
    return strides.Offset(g.groups, static_cast<uint32_t>(group));
  };
  const size_t source_base = matrix(g.source_groups) + b % g.batch * g.source_rows * g.depth;
  const size_t weight_base = matrix(g.weight_groups);
  begin += group * g.nodes;
  double sum = 0, bound = 0;
  const double sums = (begin[n + 1] - begin[n]) * ceil(g.depth / 16.0);  // of 16 products, each truncated to fp32
  for (int p = begin[n]; p < begin[n + 1]; ++p) {
    for (int d = 0; d < g.depth; ++d) {
      const size_t at = g.transposed ? (size_t(slot[p]) * g.columns + o) * g.depth + d
                                     : (size_t(slot[p]) * g.depth + d) * g.columns + o;
      const double v = At(g.source, g.source_type, source_base + size_t(source[p]) * g.depth + d) *
                       At(g.weight, g.compute_type, weight_base + at);
      sum += v;
      bound += fabs(v);
    }
  }
  const int count = begin[n + 1] - begin[n];
  const bool unwritten = !hubs && g.kind == Taps::kSources && count > knnconv::gpu::kHubTaps;
  if (g.bias != nullptr && !(g.zero_empty_rows && count == 0)) {
    const double bias = g.bias[matrix(g.bias_groups) + o];
    sum += bias, bound += fabs(bias);
  }
  const size_t at = (b * g.nodes + n) * g.columns + o;
  const double got = At(g.out, g.out_type, at);
  const double ulp = g.out_type == Element::kF32 ? 0 : g.out_type == Element::kF16 ? 1.0 / 2048 : 1.0 / 256;
  const double error = fabs(got - sum), limit = ulp * fabs(sum) + (8 + sums / 8) * 1.2e-7 * bound + 6e-8;
  const bool right = unwritten ? isnan(got) : error <= limit;
  if (!right && atomicAdd(wrong, 1ull) == 0) {
    worst[0] = b, worst[1] = n, worst[2] = o, worst[3] = got, worst[4] = sum;
  }
}

inline bool IsRight(const Problem& p, size_t rows_at_most, bool hubs = false) {
  unsigned long long* wrong;
  double* worst;
  CHECK(cudaMallocManaged(&wrong, 8));
  CHECK(cudaMallocManaged(&worst, 40));
  *wrong = 0;
  const size_t all = size_t(p.c.groups) * p.c.batch * p.c.nodes, step = std::max<size_t>(1, all / rows_at_most) | 1;
  const size_t rows = (all + step - 1) / step;
  Compare<<<(rows * p.c.columns + 255) / 256, 256>>>(p.gemm, p.begin, p.source, p.slot, step, rows, hubs,
                                                     wrong, worst);
  CHECK(cudaDeviceSynchronize());
  if (*wrong != 0) {
    std::printf("  WRONG %llu of %zu, e.g. [%g, %g, %g]: %g, not %g\n", *wrong, rows * p.c.columns, worst[0], worst[1],
                worst[2], worst[3], worst[4]);
  }
  const bool right = *wrong == 0;
  cudaFree(wrong), cudaFree(worst);
  return right;
}
