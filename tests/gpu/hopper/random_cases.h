// Random cases for check.cu: of every kind, ragged, often small or empty in some way.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cases.h"
#include "hopper/sample_plan.h"

class RandomCases {
 public:
  explicit RandomCases(unsigned seed) : random_(seed) {}

  Case Next() {
    const int of = Pick(0, 4);
    Case c = of == 0 ? Window() : of == 1 ? Sample() : of == 2 ? SmallDinput() : OfTable();
    c.name = "random " + std::to_string(number_++);
    c.type = Pick(0, 1) == 0 ? Element::kBF16 : Element::kF16;
    c.out_type = Pick(0, 1) == 0 ? c.type : Element::kF32;
    c.has_bias = Pick(0, 3) > 0;
    return c;
  }

 private:
  // Of g: long sums of few rows hardly change their sign, and what tensor cores cut off adds up.
  static constexpr int kLeastRows = 30;

  int Pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  // Lines of 16 bytes, few or many.
  int Width() { return 8 * (Pick(0, 1) == 0 ? Pick(1, 8) : Pick(1, 34)); }

  int Batch() {
    constexpr int kAround[] = {10, 32, 64, 128, 256};
    return Pick(0, 1) == 0 ? Pick(1, 12) : std::max(1, kAround[Pick(0, 4)] + Pick(-3, 3));
  }

  Case OfTable() {
    const int batch = Batch();
    Case c = Table("", batch, Width(), Width(), Pick(2, 60), Pick(1, batch > 64 ? 20 : 300), Pick(1, 40));
    if (Pick(0, 3) == 0) {  // samples that lie in shared memory
      c.depth = 64;
      c.columns = 8 * Pick(1, 8);
      c.taps = c.slots = Pick(1, 12);
    } else if (Pick(0, 2) > 0) {
      c.kind = Taps::kRows;
      c.slots = Pick(1, 60);
    }
    constexpr double kHoles[] = {0.2, 0.2, 0.9, 1.0};
    c.holes = kHoles[Pick(0, 3)];
    c.zero_empty = Pick(0, 1) == 0;
    if (c.kind == Taps::kRows && Pick(0, 1) == 0) {
      c = Dinput(c);
      c.taps = Pick(1, 12);
      c.zero_empty = false;
      c.source_rows = std::max(c.source_rows, kLeastRows);
    }
    if (Pick(0, 3) > 0) return c;
    return Groups(c, Pick(2, 5), Pick(0, 1) == 0, Pick(0, 1) == 0, Pick(0, 1) == 0);
  }

  // Samples that lie in shared memory, often with the last line that there is room for, or one more.
  Case Sample() {
    const int k = Pick(0, 1) == 0 ? Pick(1, 9) : Pick(1, 27), nodes = Pick(1, 400), room = RoomOfSample(k);
    const int at_edge = std::max(2, room + Pick(-2, 1)), sources = Pick(0, 1) == 0 ? Pick(2, 400) : at_edge;
    const int batch = sources > 400 ? Pick(1, 40) : Pick(0, 3) > 0 ? Pick(1, 130) : Pick(260, 280);
    Case c = Table("", batch, 64, 8 * Pick(1, 8), sources, std::max(nodes, (sources + k - 1) / k), k);
    constexpr double kHoles[] = {0.0, 0.2, 0.9, 1.0};
    c.holes = kHoles[Pick(0, 3)];
    c.zero_empty = Pick(0, 1) == 0;
    return c;
  }

  // Sources of samples beside the weights of `slots` slots.
  static int RoomOfSample(int slots) {
    TapGemm gemm = {};
    gemm.kind = Taps::kColumns;
    gemm.batch = 1;
    gemm.nodes = 1 << 20;
    gemm.depth = 64;
    gemm.columns = 64;
    gemm.slots = gemm.table.columns = slots;
    int most = 0;
    for (int step = 1 << 12; step > 0; step /= 2) {
      gemm.source_rows = most + step;
      if (knnconv::hopper::FitsSample(gemm)) most += step;
    }
    return most;
  }

  // Lists of batches whose rows are gathered one by one; slots spread or near each other.
  Case SmallDinput() {
    Case c = Dinput(Table("", Pick(1, 9), Width(), Width(), Pick(1, 400), Pick(kLeastRows, 400), 1));
    c.taps = Pick(0, 3) > 0 ? Pick(1, 12) : Pick(1, 70);
    c.slots = Pick(0, 1) == 0 ? Pick(1, 8) : Pick(1, 130);
    c.slots_of_node = Pick(0, 1) == 0 ? 0 : Pick(1, 4);
    c.holes = 0.2;
    if (Pick(0, 2) > 0) return c;
    return Groups(c, Pick(2, 5), Pick(0, 1) == 0, Pick(0, 1) == 0, Pick(0, 1) == 0);
  }

  Case Window() {
    Case c{"", Taps::kWindow, false, Pick(1, 6), Width(), Width()};
    for (int d = 0; d < 2; ++d) {
      c.kernel[d] = Pick(1, 5);
      c.stride[d] = Pick(0, 1) == 0 ? 1 : Pick(1, 4);
      c.dilation[d] = Pick(0, 2) > 0 ? 1 : Pick(1, 3);
      c.padding[d] = Pick(-2, c.kernel[d]);
      c.out[d] = Pick(1, 24);
      const int reached = (c.out[d] - 1) * c.stride[d] + (c.kernel[d] - 1) * c.dilation[d] + 1;
      c.size[d] = std::max(1, reached - 2 * c.padding[d] + Pick(-1, 2));
    }
    c.source_rows = c.size[0] * c.size[1];
    c.nodes = c.out[0] * c.out[1];
    c.taps = c.slots = c.kernel[0] * c.kernel[1];
    if (Pick(0, 1) == 0) c = Dinput(c);
    if (Pick(0, 3) > 0) return c;
    return Groups(c, Pick(2, 4), Pick(0, 1) == 0, Pick(0, 1) == 0, false);
  }

  std::mt19937 random_;
  int number_ = 0;
};
