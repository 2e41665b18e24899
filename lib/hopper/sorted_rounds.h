// Rounds of dinput's tiles: what a tile's taps become, sorted by slot.
//
// A *round* is one slot of a tile, or a part of its taps where they are too many. A tile's rounds follow each other by
// slot.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"
#include "hopper/tap_choice.h"

namespace knnconv::hopper {

// The row of the tile that an extra line is added to, and when: in one pass, different rows have something added. A
// pair of lines, one in each half of a place (RoundOrder), is added as one; both have kPair in `row`. Other lines lie
// in the first half where their pass is even, in the second one where it is odd.
struct alignas(2) LineMark {
  static constexpr int kPair = 128, kNoPass = 255;  // kNoPass: not a line

  uint8_t row, pass;
};

// Taps of a tile's 128 nodes. The first taps of a node and slot, one a round, are its rows of these rounds, and all
// others extra lines, a node's two by two: its pairs come in passes 0, 1, ..., then the line that is left over.
struct alignas(16) SortedRound {
  static constexpr int kRows = kBoxRows, kLines = 64, kSources = kRows + kLines;

  // Source rows, those of other batch entries and groups before the node's included, or holes; those of one loading
  // thread stand together: those of nodes, then of lines.
  int32_t source[kSources];
  LineMark mark[kLines];
  uint32_t unwritten[4];  // rows that are not written, 32 each
  int32_t slot;           // or a hole: a tile without taps has one round, of zeros
  int32_t first_pass, end_pass;
  int32_t last;  // whether it is the tile's
};

// How many lines a round has, where loading threads have their sources, and which taps become lines.
struct RoundOrder {
  static constexpr int kLines = SortedRound::kLines, kPlaces = kLines / 2;
  static constexpr int kLoaders = 16, kFirstLine = SortedRound::kRows;

  // Of numbers that are not negative: what is known to be so is divided by a shift.
  KNNCONV_HOST_DEVICE static constexpr uint32_t PlaceOfRow(uint32_t row) {
    return row % kLoaders * (SortedRound::kRows / kLoaders) + row / kLoaders;
  }
  KNNCONV_HOST_DEVICE static constexpr uint32_t PlaceOfLine(uint32_t line) {
    return kFirstLine + line % kLoaders * (kLines / kLoaders) + line / kLoaders;
  }
  // The line in half `half` of place `place`: a thread has both halves' products, if any.
  KNNCONV_HOST_DEVICE static constexpr uint32_t LineAt(uint32_t place, uint32_t half) {
    return place / 8 * 16 + half * 8 + place % 8;
  }
  // Of a node's taps of a slot that has this many rounds.
  KNNCONV_HOST_DEVICE static constexpr int RowsOf(int taps, int rounds) { return taps < rounds ? taps : rounds; }
};

}  // namespace knnconv::hopper
