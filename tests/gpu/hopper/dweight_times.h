// Times of a weight gradient, replayed from a graph.
#pragma once

#include <vector>

#include "dweight_problem.h"
#include "hopper/dweight_launch.h"

inline double Milliseconds(const std::vector<Problem>& sets, int tile) {
  constexpr int kCalls = 12;
  Replay replay(sets, tile, kCalls);
  return check::MedianMilliseconds(replay.stream(), 0, 9, [&] { replay.Launch(); }) / kCalls;
}

inline void Time(Case c, double target, const std::vector<int>& tiles, Element result) {
  c.has_holes = false;
  std::vector<Problem> sets;
  for (int i = 0; i < 3; ++i) {
    sets.push_back(Make<__nv_bfloat16>(c, result, false, false, i + 1, 0));
    if (i == 0) continue;
    // Calls of one program have the same room, one after the other.
    CHECK(cudaFree(sets[i].dweight.partials));
    sets[i].dweight.partials = sets[0].dweight.partials;
  }
  const double flops = 2.0 * c.groups() * c.batch * c.outputs * c.neighbours * c.channels * c.columns;
  std::printf("%-22s target %.4f:", c.name.c_str(), target);
  for (int tile : tiles) {
    const double ms = Milliseconds(sets, tile);
    if (tile < 0) {
      std::printf(" chosen %.4f (%.0f TFLOP/s)", ms, flops / ms / 1e9);
    } else if (tile == hopper::kInSamples) {
      std::printf("  samples %.4f", ms);
    } else {
      const auto& size = hopper::kDweightTiles[tile];
      std::printf("  %d,%d,%d,%d %.4f", size.warpgroups, size.warpgroup_boxes, size.columns, size.taps, ms);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
  for (int i = 1; i < 3; ++i) sets[i].dweight.partials = nullptr;
  for (Problem& p : sets) Free(p);
}
