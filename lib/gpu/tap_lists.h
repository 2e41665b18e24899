// Nodes' lists of taps, and walks over those of a tile.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/tap_tile.h"

namespace knnconv::gpu {

KNNCONV_DEVICE bool IsRow(int32_t index, int64_t rows) {
  return static_cast<uint64_t>(static_cast<int64_t>(index)) < static_cast<uint64_t>(rows);
}

template <int kRows>
KNNCONV_DEVICE void MarkLive(TapTable<kRows>& table, int node) {
  atomicOr(&table.node_live[node / 32], 1u << node % 32);
}

// A 64-bit offset stored as two int32 words, low word first.
KNNCONV_DEVICE int64_t SourceOffset(const int32_t* offsets, int64_t node) {
  const uint64_t low = static_cast<uint32_t>(offsets[2 * node]), high = static_cast<uint32_t>(offsets[2 * node + 1]);
  return static_cast<int64_t>(high << 32 | low);
}

// Where a node's taps stand. One with more than kHubTaps in the source order shows none.
struct TapList {
  int64_t begin;
  int count;
  bool hub;
};

KNNCONV_DEVICE TapList ListOf(const TapGemm& gemm, const TapTile& tile, int j) {
  const int64_t node = tile.first_node + j;
  if (gemm.kind == Taps::kRows) return {node * gemm.table.columns, gemm.table.columns, false};
  const int64_t begin = SourceOffset(tile.tap_offsets, node), count = SourceOffset(tile.tap_offsets, node + 1) - begin;
  const bool hub = count > kHubTaps;
  return {begin, hub ? 0 : static_cast<int>(count), hub};
}

// Starts the lists of the tile's nodes; hubs' rows are left to others.
template <int kRows>
KNNCONV_DEVICE void OpenLists(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table) {
  const int t = threadIdx.x;
  if (t < tile.nodes) {
    table.list.cursor[t] = 0;
    table.list.slot[t] = INT_MIN;
    table.list.rank[t] = -1;
  }
  if (t < tile.rows && ListOf(gemm, tile, table.row[t].node).hub) table.row[t].node = kRows;
  __syncthreads();
}

// Walks the nodes' lists from their cursors while slots are below `slot_end`, several threads a node. A tap's rank is
// its place among the taps of its node and slot. `visit(node, slot, source, rank)` sees taps that are no holes and
// tells whether it takes them; a node's walk ends at the first that is not taken. kMove: cursors go to the walk's end.
template <bool kMove, int kRows, typename Visit>
KNNCONV_DEVICE void WalkLists(const TapGemm& gemm, const TapTile& tile, TapTable<kRows>& table, int slot_begin,
                              int slot_end, const Visit& visit) {
  int width = kLayers;
  while (width * tile.nodes > kTapThreads) width /= 2;
  const int j = threadIdx.x / width, lane = threadIdx.x % width;
  bool more = j < tile.nodes, live = false;
  const TapList list = more ? ListOf(gemm, tile, j) : TapList{};
  int cursor = more ? table.list.cursor[j] : 0;
  int last_slot = more ? table.list.slot[j] : 0, last_rank = more ? table.list.rank[j] : 0;
  more = more && cursor < list.count;
  while (AnyLane(more)) {
    const int at = cursor + lane;
    const bool in_list = more && at < list.count;
    const int slot = in_list ? tile.tap_slots[list.begin + at] : INT_MAX;
    const bool in_window = in_list && slot < slot_end;
    const int32_t source = in_window ? tile.tap_sources[list.begin + at] : kHole;
    const bool valid = slot >= slot_begin && IsRow(source, gemm.source_rows);

    const int before = GroupShuffleUp(slot, width);
    const uint32_t heads = GroupBallot(slot != (lane == 0 ? last_slot : before), width) & ((2u << lane) - 1);
    const int rank = heads != 0 ? lane - (31 - __clz(static_cast<int>(heads))) : last_rank + 1 + lane;

    const bool taken = in_window && (!valid || visit(j, slot, source, rank));
    live |= taken && valid;
    const uint32_t left = GroupBallot(!taken, width);
    const int moved = left == 0 ? width : __ffs(static_cast<int>(left)) - 1;
    const int slot_moved = GroupShuffle(slot, moved > 0 ? moved - 1 : 0, width);
    const int rank_moved = GroupShuffle(rank, moved > 0 ? moved - 1 : 0, width);
    if (moved > 0) {
      last_slot = slot_moved;
      last_rank = rank_moved;
    }
    cursor += moved;
    more = more && moved == width && cursor < list.count;
  }
  live = GroupBallot(live, width) != 0;
  if (kMove) SyncWarp();  // all lanes of a node have read what one of them writes
  if (kMove && lane == 0 && j < tile.nodes) {
    if (live) MarkLive(table, j);
    table.list.cursor[j] = cursor;
    table.list.slot[j] = last_slot;
    table.list.rank[j] = last_rank;
  }
}

}  // namespace knnconv::gpu
