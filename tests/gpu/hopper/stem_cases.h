// What check_stem.cu computes: dinput of stems, in small cases, the shapes whose times matter, and random ones.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cases.h"
#include "hopper/stem_dinput.h"

// `taps`: the mean of lists whose rows and slots are drawn, some empty and some of hubs; 0: a table of nearest points.
inline Case Stem(std::string name, int batch, int nodes, int rows, int slots, int depth, int taps,
                 Element type = Element::kBF16, Element out_type = Element::kF32) {
  Case c{name, Taps::kSources, true, batch, depth, knnconv::hopper::kStemChannels, rows, nodes, taps, slots};
  c.type = type;
  c.out_type = out_type;
  c.holes = taps > 0 ? 0.2 : 0.0;
  return c;
}

inline std::vector<Case> StemCases() {
  constexpr Element kHalf = Element::kF16, kBFloat = Element::kBF16;
  return {
      Stem("nearest", 5, 300, 140, 40, 64, 0),
      Stem("30 slots", 40, 200, 70, 30, 96, 9, kHalf, kHalf),
      Stem("121 slots", 6, 1501, 200, 121, 96, 16, kBFloat, kBFloat),
      Stem("most sources", 3, 4096, 60, 9, 16, 2),
      Stem("most slots", 7, 61, 33, 128, 24, 27, kHalf),
      Stem("one set", 3, 131, 200, 64, 96, 30, kBFloat, kBFloat),
      Stem("two sets", 3, 131, 200, 65, 64, 30, kHalf, kBFloat),
      Stem("hubs", 20, 71, 120, 30, 72, 50, kBFloat, kBFloat),
      Stem("8 deep", 2, 131, 40, 64, 8, 20),
      Stem("one slot", 2, 40, 300, 1, 56, 8, kHalf, kHalf),
      Stem("one source", 3, 1, 41, 25, 32, 300),
      Stem("many stretches", 2, 333, 1900, 128, 88, 100, kBFloat, kBFloat),
      Groups(Stem("own tables", 4, 91, 40, 12, 16, 6, kHalf), 6, true, false, true),
      Groups(Stem("own weights", 3, 90, 57, 20, 64, 6, kBFloat, kBFloat), 3, false, true, false),
  };
}

inline std::vector<Case> TimedStems() {
  constexpr Element kBFloat = Element::kBF16;
  return {Stem("121 neighbours", 128, 4085, 964, 121, 96, 0, kBFloat, kBFloat),
          Stem("49 neighbours", 128, 4085, 964, 49, 64, 0, kBFloat, kBFloat)};
}

// Ragged, often small, with lists that are empty, short or long; now and then with numbers at the kernel's limits.
class RandomStems {
 public:
  explicit RandomStems(unsigned seed) : random_(seed) {}

  Case Next() {
    constexpr Element kTypes[] = {Element::kF16, Element::kBF16};
    const Element type = kTypes[Pick(0, 1)], out_type = Pick(0, 1) == 0 ? Element::kF32 : kTypes[Pick(0, 1)];
    const int nodes = Near(knnconv::hopper::kMostStemNodes, 300), slots = Near(knnconv::hopper::kMostStemSlots, 70);
    const int rows = Pick(0, 3) > 0 ? Pick(2, 150) : Pick(2, 1200), depth = 8 * Pick(1, 12);
    const bool nearest = rows <= nodes && slots <= nodes && Pick(0, 3) == 0;
    const int taps = Pick(0, 3) > 0 ? Pick(1, 12) : Pick(1, nodes > 300 ? 30 : 300);
    const std::string name = "random " + std::to_string(number_++);
    const Case c = Stem(name, Pick(1, 6), nodes, rows, slots, depth, nearest ? 0 : taps, type, out_type);
    if (Pick(0, 3) > 0) return c;
    return Groups(c, Pick(2, 5), Pick(0, 1) == 0, Pick(0, 1) == 0, Pick(0, 1) == 0);
  }

 private:
  int Pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  int Near(int most, int usual) {
    const int of = Pick(0, 7);
    return of == 0 ? most - Pick(0, 2) : of == 1 ? Pick(1, most) : Pick(1, usual);
  }

  std::mt19937 random_;
  int number_ = 0;
};
