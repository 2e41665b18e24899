// A producing thread's way through the list of taps of its row of the tile, read ahead into shared memory.
//
// A load into a register would stop the warp where its value is first moved. Copies to shared memory are waited for a
// round after the one that issued them.
#pragma once

#include <climits>
#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/tap_layers.h"
#include "hopper/node_lists.h"
#include "hopper/ptx.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

// The list of row `row` of the walk's tile number `turn`; an empty one if there is no such tile.
template <typename Shape>
KNNCONV_DEVICE TapList ListAt(const TapPlan& plan, const TileWalk<Shape>& walk, int64_t turn, int row) {
  if (!walk.Has(turn)) return TapList{};
  const TapTile tile = walk.Tile(turn);
  return ListOf(plan, tile, tile.row_tile * Shape::kRows + row);
}

// Entries are copied in blocks of 16 bytes as they are aligned in memory, kBlocks ahead. kThreads read, each for
// itself.
template <int kThreads, int kBlocks>
class TapReader {
  static constexpr int kBlock = 4;  // entries

 public:
  static constexpr int kMostAhead = kBlock * kBlocks - (kBlock - 1);  // that surely are, the next entry included

  struct Room {
    int4 sources[2][kBlocks][kThreads], slots[2][kBlocks][kThreads];  // of the list that is read, and of the next one
  };

  KNNCONV_DEVICE TapReader(const gpu::TapGemm& gemm, Room& room, int thread)
      : gemm_(gemm), room_(room), thread_(thread) {}

  // Announces the list after the one that is read.
  KNNCONV_DEVICE void Open(const TapList& list) {
    next_ = list;
    next_rounds_ = 0;
#pragma unroll 1
    for (int block = 0; block < kBlocks; ++block) Request(next_, set_ ^ 1, block);
  }

  // Goes over to the list that was opened.
  KNNCONV_DEVICE void Enter() {
    list_ = next_;
    set_ ^= 1;
    place_ = Skew(list_);
    end_ = place_ + list_.count;
    requested_ = kBlocks;
    arrived_ = next_rounds_ > 1 ? kBlocks : 0;
    earlier_ = arrived_;
  }

  // Asks for what the window has room for, and waits for what earlier rounds have asked for.
  KNNCONV_DEVICE void EndRound() {
    FillUp();
    gpu::CommitCopies();
    gpu::WaitForCopies<1>();
    arrived_ = max(arrived_, earlier_);
    earlier_ = requested_;
    ++next_rounds_;
  }

  KNNCONV_DEVICE const TapList& list() const { return list_; }
  KNNCONV_DEVICE int left() const { return end_ - place_; }
  KNNCONV_DEVICE void Advance(int count) { place_ += count; }

  // Waits for the next `count` entries, or those left; kMostAhead at most.
  KNNCONV_DEVICE void Prepare(int count) {
    if (left() == 0 || (min(place_ + count, end_) - 1) / kBlock < arrived_) return;
    FillUp();
    gpu::CommitCopies();
    gpu::WaitForCopies<0>();
    arrived_ = requested_;
  }

  // Of the entry `ahead` of the next one, for which Prepare has waited.
  KNNCONV_DEVICE int32_t Slot(int ahead) const { return Entry(room_.slots, ahead); }
  KNNCONV_DEVICE int32_t Source(int ahead) const { return Entry(room_.sources, ahead); }

 private:
  // Entries before the list in its first block.
  KNNCONV_DEVICE static int Skew(const TapList& list) { return static_cast<int>(list.begin) & (kBlock - 1); }

  KNNCONV_DEVICE void FillUp() {
#pragma unroll 1
    while (requested_ < place_ / kBlock + kBlocks) Request(list_, set_, requested_++);
  }

  KNNCONV_DEVICE void Request(const TapList& list, int set, int block) const {
    const int skew = Skew(list), left = skew + list.count - block * kBlock;
    if (left <= 0 || list.count == 0) return;
    const int64_t from = list.begin - skew + block * kBlock;
    const int bytes = min(left, kBlock) * static_cast<int>(sizeof(int32_t)), place = block % kBlocks;
    CopyPart(SharedAddress(&room_.sources[set][place][thread_]), gemm_.table.sources + from, bytes);
    if (gemm_.kind != gpu::Taps::kColumns) {
      CopyPart(SharedAddress(&room_.slots[set][place][thread_]), gemm_.table.slots + from, bytes);
    }
  }

  KNNCONV_DEVICE int32_t Entry(const int4 (&blocks)[2][kBlocks][kThreads], int ahead) const {
    const auto place = static_cast<uint32_t>(place_ + ahead);
    return reinterpret_cast<const int32_t*>(&blocks[set_][place / kBlock % kBlocks][thread_])[place % kBlock];
  }

  const gpu::TapGemm& gemm_;
  Room& room_;
  const int thread_;
  TapList list_{}, next_{};
  int set_ = 0;
  int place_ = 0, end_ = 0;          // of the next entry and behind the last, counted from the list's first block
  int requested_ = 0, arrived_ = 0;  // blocks of the list
  int earlier_ = 0;                  // that were requested when the last round ended
  int next_rounds_ = 0;              // since the next list was opened
};

}  // namespace knnconv::hopper
