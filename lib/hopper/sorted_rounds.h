// Rounds of dinput's tiles: what a tile's taps become, sorted by slot.
//
// A *round* is one slot of a tile, or a part of its taps where they are too many. A tile's rounds follow each other by
// slot.
#pragma once

#include <cstdint>

#include "gpu/vendor.h"
#include "hopper/tap_choice.h"

namespace knnconv::hopper {

// Of the lines that lie in a stage one by one, a node's: [first, first + count).
struct LineSpan {
  uint8_t first, count;
};

// Taps of a tile's 128 nodes. The first taps of a node and slot, one a round, are its rows of these rounds, and all
// others extra lines.
struct alignas(16) SortedRound {
  static constexpr int kRows = kBoxRows, kSources = 192;

  // Source rows, those of other batch entries and groups before the node's included; those of one loading thread stand
  // together: those of nodes, or holes, then of lines. What is behind the last line is anything.
  int32_t source[kSources];
  LineSpan span[kRows];
  uint32_t unwritten[4];  // rows that are not written, 32 each
  int32_t slot;           // or a hole: a tile without taps has one round, of zeros
  int32_t lines;
  int32_t last;  // whether it is the tile's
};

// How many lines a round has, where loading threads have their sources, and which taps become lines.
struct RoundOrder {
  static constexpr int kLines = 64, kLoaders = 16, kFirstLine = SortedRound::kRows;
  static_assert(kFirstLine + kLines == SortedRound::kSources);

  // Of numbers that are not negative: what is known to be so is divided by a shift.
  KNNCONV_HOST_DEVICE static constexpr uint32_t PlaceOfRow(uint32_t row) {
    return row % kLoaders * (SortedRound::kRows / kLoaders) + row / kLoaders;
  }
  KNNCONV_HOST_DEVICE static constexpr uint32_t PlaceOfLine(uint32_t line) {
    return kFirstLine + line % kLoaders * (kLines / kLoaders) + line / kLoaders;
  }
  // Of a node's taps of a slot that has this many rounds.
  KNNCONV_HOST_DEVICE static constexpr int RowsOf(int taps, int rounds) { return taps < rounds ? taps : rounds; }
};

}  // namespace knnconv::hopper
