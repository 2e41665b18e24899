// Random cases for check_dweight.cu: of every kind, ragged, often small.
#pragma once

#include <algorithm>
#include <random>
#include <string>

#include "dweight_cases.h"

class RandomCases {
 public:
  explicit RandomCases(unsigned seed) : random_(seed) {}

  Case Next() {
    const bool dense = Pick(0, 2) == 0;
    Case c = dense ? OfDense() : OfTable();
    c.name = "random " + std::to_string(number_++);
    if (Pick(0, 2) > 0) return c;
    const auto some = [&] { return static_cast<unsigned>(Pick(0, 7)); };
    if (dense) return Groups(c, Pick(2, 5), false, Pick(0, 1) == 0, true, false);
    return Groups(c, {Pick(1, 3), Pick(1, 3), Pick(1, 4)}, some(), Pick(0, 3) > 0 ? 7 : some(), some());
  }

  int Pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

 private:
  int Width() { return 8 * (Pick(0, 1) == 0 ? Pick(1, 8) : Pick(1, 40)); }

  Case OfTable() {
    if (Pick(0, 2) == 0) {  // samples that often find room in shared memory
      const int sources = Pick(0, 3) > 0 ? Pick(2, 400) : Pick(1000, 1500);
      const int batch = sources > 400 ? Pick(1, 20) : Pick(1, 130);
      return Table("", batch, 64, 8 * (Pick(0, 1) == 0 ? 8 : Pick(1, 8)), sources, Pick(1, 400), Pick(1, 27), 0);
    }
    constexpr int kAround[] = {16, 32, 64, 128};
    const int batch = Pick(0, 1) == 0 ? Pick(1, 8) : kAround[Pick(0, 3)] + Pick(-3, 3);
    const int slots = Pick(0, 1) == 0 ? 0 : Pick(1, 40);
    return Table("", batch, Width(), Width(), Pick(2, 60), Pick(1, batch > 8 ? 40 : 300), Pick(1, 20), slots);
  }

  Case OfDense() {
    std::array<int, 2> kernel, stride, padding, dilation, size;
    for (int d = 0; d < 2; ++d) {
      kernel[d] = d == 1 && Pick(0, 1) == 0 ? 3 : Pick(1, 4);  // often strips
      stride[d] = Pick(0, 2) > 0 ? 1 : Pick(1, 3);
      dilation[d] = Pick(0, 2) > 0 ? 1 : Pick(1, 4);
      padding[d] = Pick(-1, 3);
      size[d] = (kernel[d] - 1) * dilation[d] + 1 + std::max(0, -2 * padding[d]) + Pick(0, 24);
    }
    return Dense("", Pick(1, 9), size[0], size[1], Width(), Width(), kernel, stride, padding, dilation);
  }

  std::mt19937 random_;
  int number_ = 0;
};
