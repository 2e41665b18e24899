// Which steps of a cluster's two tiles each of its two blocks multiplies, so that both have about as many.
//
//     block 0:   the longer list's tile   | steps .......... |
//     block 1:   the shorter list's tile  | steps .... |  then the rest of the longer one's  | steps |
//
// Lists of few nodes differ: of 60 nodes that are 9 neighbours of 60, the longest has 15 taps, where the mean is 9.
// Both blocks add their sums of the longer list (tap_split.h); block 1 has written the other tile by then.
#pragma once

#include "gpu/vendor.h"

namespace knnconv::hopper {

// Steps [begin, end) of a tile's list.
struct StepRange {
  int begin, end;
};

// A block's steps of one of the tiles, of which it has up to two such parts.
struct TilePart {
  bool longer;  // which tile
  StepRange steps;
  bool adds;  // whether the blocks add their sums
};

// The cut of two lists, of so many steps; `has_shorter`: whether there is a second one.
struct PairCut {
  // What writing a second tile costs besides, in steps, and what adding does at least.
  static constexpr int kSecond = 2, kLeast = 4;

  int longer, shorter;
  int first;  // of the longer list, block 0's

  KNNCONV_HOST_DEVICE static PairCut Of(int longer, int shorter, bool has_shorter) {
    const int given = (longer - shorter - (has_shorter ? kSecond : 0)) / 2;
    return {longer, shorter, given < kLeast ? longer : longer - given};
  }

  // Part number `turn`: of block 1, those with the shorter list come first.
  KNNCONV_HOST_DEVICE bool Has(int rank, int turn) const {
    return turn == 0 || (turn == 1 && rank == 1 && first < longer);
  }
  KNNCONV_HOST_DEVICE TilePart Part(int rank, int turn) const {
    if (rank == 0) return {true, {0, first}, first < longer};
    if (turn == 0) return {false, {0, shorter}, false};
    return {true, {first, longer}, true};
  }
};

}  // namespace knnconv::hopper
