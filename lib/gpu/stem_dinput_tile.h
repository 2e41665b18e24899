// How the channels of slots are dealt to the rows of tensor-core tiles, 16 to a tile.
#pragma once

#include "gpu/stem_dinput.h"

namespace knnconv::gpu {

inline constexpr int kStemDinputTiles = 3;  // of weights, which a warp's registers hold

// A lane's two rows of a tile are the two channels of a pair, so that it stores both at once; an odd channel has tiles
// of its own, where a lane's rows are two slots.
struct StemTiles {
  int pairs, singles;            // of a slot's channels
  int pair_tiles, single_tiles;
  int slots;                     // whose channels the tiles have room for
  int scale;                     // of places: 4 where they are to be bytes of single channels
};

constexpr StemTiles StemTilesOf(int channels) {
  switch (channels) {
    case 1:
      return {0, 1, 0, kStemDinputTiles, 16 * kStemDinputTiles, 1};
    case 2:
      return {1, 0, kStemDinputTiles, 0, 8 * kStemDinputTiles, 1};
    case 3:
      return {1, 1, 2, 1, 16, 4};
    default:
      return {2, 0, kStemDinputTiles, 0, 4 * kStemDinputTiles, 1};
  }
}
static_assert(StemTilesOf(3).pair_tiles + StemTilesOf(3).single_tiles == kStemDinputTiles);

}  // namespace knnconv::gpu
