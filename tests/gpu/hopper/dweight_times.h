// Times of a weight gradient, replayed from a graph.
#pragma once

#include <vector>

#include "dweight_problem.h"
#include "hopper/dweight_launch.h"

inline double Milliseconds(const std::vector<Problem>& sets, int tile) {
  constexpr int kCalls = 12, kRounds = 9;
  Replay replay(sets, tile, kCalls);
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int round = 0; round < kRounds; ++round) {
    CHECK_CUDA(cudaEventRecord(begin, replay.stream()));
    replay.Launch();
    CHECK_CUDA(cudaEventRecord(end, replay.stream()));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms / kCalls);
  }
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

inline void Time(Case c, double target, const std::vector<int>& tiles, Element result) {
  c.has_holes = false;
  std::vector<Problem> sets;
  for (int i = 0; i < 3; ++i) {
    sets.push_back(Make<__nv_bfloat16>(c, result, false, false, i + 1, 0));
  }
  const double flops = 2.0 * c.batch * c.outputs * c.neighbours * c.channels * c.columns;
  std::printf("%-22s target %.4f:", c.name.c_str(), target);
  for (int tile : tiles) {
    const double ms = Milliseconds(sets, tile);
    if (tile < 0) {
      std::printf(" chosen %.4f (%.0f TFLOP/s)", ms, flops / ms / 1e9);
    } else {
      const auto& size = hopper::kDweightTiles[tile];
      std::printf("  %d,%d,%d,%d %.4f", size.warpgroups, size.warpgroup_boxes, size.columns, size.taps, ms);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
  for (Problem& p : sets) Free(p);
}
