// Holds a weight gradient to sums in double precision.
#pragma once

#include <cmath>
#include <vector>

#include "dweight_problem.h"

// Adds one group's gradient.
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
  dw[at] += sum;
  size[at] += total;
}

inline float ToHost(const std::vector<unsigned char>& bytes, Element type, int64_t at) {
  if (type == Element::kF32) return reinterpret_cast<const float*>(bytes.data())[at];
  if (type == Element::kF16) return __half2float(reinterpret_cast<const __half*>(bytes.data())[at]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(bytes.data())[at]);
}

// Prints what is off, errors in eps32 of the sum of absolute products; 1 where something is.
template <typename T>
int CheckCase(const Case& c, Element out_type, int tile, bool zero_empty_rows, bool positive = false) {
  // Room for forced tiles that waste some.
  Problem p = Make<T>(c, out_type, zero_empty_rows, positive, 1, tile < 0 ? 0 : 1 << 26);
  const int64_t one_weight = int64_t{c.slots} * c.channels * c.columns, weight = c.results() * one_weight;
  const int64_t biases = int64_t{c.results()} * c.columns;
  if (!Takes(p)) {
    std::printf("NOT TAKEN %s\n", c.name.c_str());
    return 1;
  }
  double *exact, *size;
  CHECK(cudaMalloc(&exact, weight * 8));
  CHECK(cudaMalloc(&size, weight * 8));
  CHECK(cudaMemset(exact, 0, weight * 8));
  CHECK(cudaMemset(size, 0, weight * 8));
  const int64_t x_matrix = int64_t{c.batch} * c.sources * c.channels;
  const int64_t g_matrix = int64_t{c.batch} * c.outputs * c.columns;
  for (int i = 0; i < c.groups(); ++i) {
    const int table = c.MatrixOf(c.own_table, i);
    const int64_t result = i / c.dims[2] * one_weight;
    Naive<<<dim3((c.columns + 63) / 64, c.channels, c.slots), 64>>>(
        static_cast<const T*>(p.dweight.x) + c.MatrixOf(c.own_x, i) * x_matrix,
        static_cast<const T*>(p.dweight.g) + c.MatrixOf(c.own_g, i) * g_matrix, p.offsets[table], p.rows[table],
        p.sources[table], c.batch, c.sources, c.outputs, c.channels, c.columns, exact + result, size + result);
  }
  CHECK(cudaDeviceSynchronize());
  Check(Run(p, nullptr, tile));
  const cudaError_t ran = cudaDeviceSynchronize();
  if (ran != cudaSuccess) {
    std::printf("FAILED %s tile %d: %s\n", c.name.c_str(), tile, cudaGetErrorString(ran));
    std::exit(1);
  }
  std::vector<unsigned char> dw(weight * 4), again(weight * 4);
  std::vector<double> want(weight), bound(weight);
  std::vector<float> db(biases);
  CHECK(cudaMemcpy(dw.data(), p.dweight.dw, weight * 4, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(db.data(), p.dweight.db, biases * 4, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(want.data(), exact, weight * 8, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(bound.data(), size, weight * 8, cudaMemcpyDeviceToHost));
  CHECK(cudaMemset(p.dweight.dw, 0xff, weight * 4));
  Replay replay({p}, tile, 2);
  replay.Launch();
  CHECK(cudaStreamSynchronize(replay.stream()));
  CHECK(cudaMemcpy(again.data(), p.dweight.dw, weight * 4, cudaMemcpyDeviceToHost));
  const double eps = std::ldexp(1.0, -23);
  const double ulp = out_type == Element::kF32 ? 0 : out_type == Element::kF16 ? 0x1p-10 : 0x1p-7;
  const double least = out_type == Element::kF16 ? 0x1p-24 : 0;  // what small numbers are rounded to
  double worst = 0;
  int64_t wrong = 0, first = -1;
  for (int64_t i = 0; i < weight; ++i) {
    const double error = std::fabs(ToHost(dw, out_type, i) - want[i]);
    const double ratio = std::max(0.0, error - ulp * std::fabs(want[i]) - least) / (eps * bound[i] + 1e-30);
    if (!(ratio <= 64)) {
      if (first < 0) first = i;
      ++wrong;
    } else {
      worst = std::max(worst, ratio);
    }
  }
  std::vector<T> g(c.MatricesOf(c.own_g) * g_matrix);
  CHECK(cudaMemcpy(g.data(), p.dweight.g, g.size() * sizeof(T), cudaMemcpyDeviceToHost));
  int64_t bias_wrong = 0;
  double bias_worst = 0;
  std::vector<double> sums(biases), totals(biases);
  for (int i = 0; i < c.groups(); ++i) {
    const Taps& taps = p.TapsOf(i);
    for (int m = 0; m < c.outputs; ++m) {
      bool counts = !p.table.zero_empty_rows;
      for (int k = 0; k < c.neighbours && !counts; ++k) {
        const size_t tap = size_t(m) * c.neighbours + k;
        const int source = taps.indices[tap], slot = taps.slots[tap];
        counts = source >= 0 && source < c.sources && slot >= 0 && slot < c.slots;
      }
      if (!counts) continue;
      for (int b = 0; b < c.batch; ++b) {
        const size_t row = (size_t(c.MatrixOf(c.own_g, i)) * c.batch + b) * c.outputs + m;
        for (int o = 0; o < c.columns; ++o) {
          const double value = static_cast<float>(g[row * c.columns + o]);
          const int at = i / c.dims[2] * c.columns + o;
          sums[at] += value;
          totals[at] += std::fabs(value);
        }
      }
    }
  }
  for (int64_t o = 0; o < biases; ++o) {
    const double ratio = std::fabs(db[o] - sums[o]) / (eps * totals[o] + 1e-30);
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
  CHECK(cudaFree(exact));
  CHECK(cudaFree(size));
  Free(p);
  return wrong > 0 || bias_wrong > 0 || !same;
}
