// Where a weight gradient's partial sums belong in dw, and how a thread of the reduction stores them.
#pragma once

#include <cstdint>

#include "gpu/divisor.h"
#include "gpu/elements.h"
#include "hopper/dweight_task.h"
#include "hopper/float4_sums.h"

namespace knnconv::hopper {

// Threads have little else to do than find their place in dw: divisions would take longer than the sums.
struct DweightReduction {
  DweightTask task;
  DweightTileSize tile;
  int32_t lanes;  // threads that share a sum of dw: each adds every lanes-th part, then theirs are added
  gpu::Divisor by_blocks_of_tile, by_tiles_of_list, by_column_tiles;
  gpu::Divisor by_pairs, by_channel_boxes;  // pairs: of eight columns each, of a tile's products
  int64_t weight_blocks;                    // the others sum db
  int32_t channels, slots_of_list;
  void *dw, *db;
  gpu::Element dw_type, db_type;
};

template <typename T>
KNNCONV_DEVICE void StorePair(void* out, int64_t at, float first, float second) {
  struct alignas(2 * sizeof(T)) Pair {
    T value[2];
  };
  reinterpret_cast<Pair*>(static_cast<T*>(out) + at)[0] = {{gpu::FromFloat<T>(first), gpu::FromFloat<T>(second)}};
}

KNNCONV_DEVICE void StorePair(void* out, gpu::Element type, int64_t at, float first, float second) {
  if (type == gpu::Element::kF32) StorePair<float>(out, at, first, second);
  if (type == gpu::Element::kF16) StorePair<gpu::Half>(out, at, first, second);
  if (type == gpu::Element::kBF16) StorePair<gpu::BFloat>(out, at, first, second);
}

// What a thread adds: eight sums, of two rows, 8 apart, two neighbours each and again two, 8 further on (MultiplyAdd
// says why). Rows are channels and neighbours columns; of strips, rows are columns and neighbours channels.
struct EightSums {
  float4 first, second;
};

KNNCONV_DEVICE void Add(EightSums* sums, const EightSums& values) {
  Add(&sums->first, values.first);
  Add(&sums->second, values.second);
}

// Where the first of them is in dw; slots are numbered over all groups.
struct DweightPlace {
  int slot, channel, column;
  bool exists;
};

// The place of the sums that start with float4 `thread` + 256 * `pair` of a part.
KNNCONV_DEVICE DweightPlace PlaceOf(const DweightReduction& r, int32_t list, int32_t tile, int thread, int pair) {
  const DweightTileSize& size = r.tile;
  const gpu::Divisor::Result in_block = r.by_pairs.Divide(pair), in_tiles = r.by_column_tiles.Divide(tile);
  const int row = thread / 32 * 16 + thread % 32 / 4, neighbour = in_block.remainder * 16 + thread % 4 * 2;
  const int box = in_tiles.quotient * size.row_boxes() + in_block.quotient;
  int tap = 0;
  DweightPlace place;
  place.column = in_tiles.remainder * size.columns;
  if (size.has_strips()) {
    tap = neighbour / kBox;
    place.channel = neighbour % kBox;
    place.column += row;
  } else {
    place.channel = row;
    place.column += neighbour;
  }
  const gpu::Divisor::Result in_slot = r.by_channel_boxes.Divide(box);
  place.channel += in_slot.remainder * kBox;
  place.slot = list * r.slots_of_list + in_slot.quotient * size.taps + tap;
  place.exists = box < r.task.boxes && place.channel < r.channels && place.column < r.task.columns;
  return place;
}

// Two sums of neighbouring columns.
KNNCONV_DEVICE void StorePair(const DweightReduction& r, const DweightPlace& place, float first, float second) {
  if (place.channel >= r.channels || place.column >= r.task.columns) return;
  const int64_t row = int64_t{place.slot} * r.channels + place.channel;
  StorePair(r.dw, r.dw_type, row * r.task.columns + place.column, first, second);
}

KNNCONV_DEVICE DweightPlace Moved(DweightPlace place, int channels, int columns) {
  place.channel += channels;
  place.column += columns;
  return place;
}

KNNCONV_DEVICE void StoreOfBoxes(const DweightReduction& r, const DweightPlace& place, const EightSums& sums) {
  StorePair(r, place, sums.first.x, sums.first.y);
  StorePair(r, Moved(place, 8, 0), sums.first.z, sums.first.w);
  StorePair(r, Moved(place, 0, 8), sums.second.x, sums.second.y);
  StorePair(r, Moved(place, 8, 8), sums.second.z, sums.second.w);
}

// Threads of neighbouring columns exchange halves, so that each has pairs of them. Whole warps call.
KNNCONV_DEVICE void StoreOfStrips(const DweightReduction& r, DweightPlace place, const EightSums& sums, bool stores) {
  constexpr int kNeighbour = 4;  // lanes
  const bool odd = threadIdx.x / kNeighbour % 2 != 0;
  const auto exchange = [odd](float of_even, float of_odd) {
    return __shfl_xor_sync(kAllLanes, odd ? of_odd : of_even, kNeighbour);
  };
  const float4 other = {exchange(sums.first.y, sums.first.x), exchange(sums.first.w, sums.first.z),
                        exchange(sums.second.y, sums.second.x), exchange(sums.second.w, sums.second.z)};
  if (!stores) return;
  if (odd) {
    place = Moved(place, 1, -1);
    StorePair(r, place, other.x, sums.first.y);
    StorePair(r, Moved(place, 0, 8), other.y, sums.first.w);
    StorePair(r, Moved(place, 8, 0), other.z, sums.second.y);
    StorePair(r, Moved(place, 8, 8), other.w, sums.second.w);
  } else {
    StorePair(r, place, sums.first.x, other.x);
    StorePair(r, Moved(place, 0, 8), sums.first.z, other.y);
    StorePair(r, Moved(place, 8, 0), sums.second.x, other.z);
    StorePair(r, Moved(place, 8, 8), sums.second.z, other.w);
  }
}

}  // namespace knnconv::hopper
