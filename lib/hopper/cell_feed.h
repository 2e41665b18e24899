// The producers of cells: a warpgroup that sorts the taps of a tile's nodes by slot and gathers their rows of g.
//
// Each thread walks over one node's list. Beginning with the least slot that some thread has next, a few slots are
// sorted at a time: the taps that the warpgroup's 64 nodes have of a slot are numbered node by node, and each becomes a
// line of a stage.
#pragma once

#include <climits>
#include <cstdint>

#include "hopper/cell_pipe.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

template <typename Shape>
class CellFeeder {
 public:
  KNNCONV_DEVICE CellFeeder(const TapPlan& plan, const CellPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), table_(pipe.Table()), thread_(threadIdx.x % 128),
        half_(thread_ / Shape::kHalfRows), steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth),
        reader_(plan.gemm, table_.reader, thread_) {}

  KNNCONV_DEVICE void Run() {
    reader_.Open(Next(0));
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      reader_.Enter();
      Feed(walk_.Tile(turn), Next(turn + 1));  // whose loads are under way while the first slots are sorted
    }
    gpu::WaitForCopies<0>();
  }

 private:
  static constexpr int kBarrier = 1;  // of the producers

  // Slots that are sorted, a byte each.
  struct Batch {
    uint32_t first, count;  // where the lines of the thread's node begin, and how many they are
    uint32_t lines;         // of the warpgroup
    uint32_t live;          // not zero where one of the warpgroups has lines
    bool more;              // follow in this tile
  };

  KNNCONV_DEVICE TapList Next(int64_t turn) const {
    if (!walk_.Has(turn)) return TapList{};
    const TapTile tile = walk_.Tile(turn);
    return ListOf(plan_, tile, tile.row_tile * Shape::kRows + thread_);
  }

  KNNCONV_DEVICE static int Byte(uint32_t bytes, int at) { return static_cast<int>(bytes >> 8 * at & 0xff); }

  KNNCONV_DEVICE void Feed(const TapTile& tile, const TapList& next) {
    PublishNextSlot();
    for (bool is_first = true;; is_first = false) {
      const int32_t(&least)[4] = table_.least_slot[turn_];
      const int32_t slot = min(min(least[0], least[1]), min(least[2], least[3]));
      Batch batch{0, 0, 0, 1, false};  // a tile without taps has one round, of zeros
      const bool exists = slot < plan_.gemm.slots;
      if (exists) batch = Sort(slot);
      if (is_first) reader_.Open(next);
#pragma unroll 1
      for (int i = 0; batch.live >> 8 * i != 0; ++i) {
        if (Byte(batch.live, i) == 0) continue;
        const bool last = !batch.more && (i == Shape::kSlots - 1 || batch.live >> 8 * (i + 1) == 0);
        const LineSpan own{static_cast<uint8_t>(Byte(batch.first, i)), static_cast<uint8_t>(Byte(batch.count, i))};
        LoadRound(tile, exists ? slot + i : gpu::kHole, i, own, Byte(batch.lines, i), last);
        if (i == Shape::kSlots - 1) break;
      }
      if (!batch.more) return;
    }
  }

  // Tells all producers the thread's next slot, and gets them in step.
  KNNCONV_DEVICE void PublishNextSlot() {
    reader_.Prepare(1);
    const int32_t slot = reader_.left() > 0 ? reader_.Slot(0) : INT_MAX;
    __syncwarp();
    const int32_t least = __reduce_min_sync(kAllLanes, slot);
    turn_ ^= 1;
    if (thread_ % 32 == 0) table_.least_slot[turn_][thread_ / 32] = least;
    SyncThreads(kBarrier, 128);
  }

  // Gives lines to the nodes' taps of slots [first_slot, first_slot + kSlots), or fewer slots where a thread does not
  // see its taps of all of them. The last slot's lines may be fewer than its taps; then more of it follow.
  KNNCONV_DEVICE Batch Sort(int32_t first_slot) {
    constexpr int kSlots = Shape::kSlots, kWindow = Shape::Reader::kWindow, kMostLine = 128;
    static_assert(kSlots == 4 && kWindow * Shape::kHalfRows < 1 << 16);
    static_assert(Shape::kLines <= kMostLine && kMostLine + kWindow < 256);
    const int lane = thread_ % 32;
    reader_.Prepare(kWindow);
    const int begin = reader_.first(), seen_end = reader_.end();
    uint32_t own = 0;  // taps of each slot, a byte each
    int end = kSlots;
#pragma unroll
    for (int block = 0; block < kWindow / 4; ++block) {
      const int4 four = reader_.Slots(block);
      const int32_t slots[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * block + j;
        const auto slot = static_cast<uint32_t>(slots[j] - first_slot);
        if (at >= begin && at < seen_end && slot < kSlots) own += 1u << 8 * slot;
      }
      if (block == kWindow / 4 - 1 && begin + reader_.left() > kWindow) end = min(kSlots, slots[3] - first_slot + 1);
    }
    const int own_taps = Byte(own, 0) + Byte(own, 1) + Byte(own, 2) + Byte(own, 3);

    const uint32_t pairs[2] = {(own & 0xff) | (own & 0xff00) << 8, (own >> 16 & 0xff) | (own >> 24) << 16};
    uint32_t sum[2] = {pairs[0], pairs[1]};
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
      for (uint32_t& pair : sum) {
        const uint32_t before = __shfl_up_sync(kAllLanes, pair, step);
        if (lane >= step) pair += before;
      }
    }
    const int warp_end = __reduce_min_sync(kAllLanes, end);
    const bool warp_more = __any_sync(kAllLanes, own_taps < reader_.left());
    if (lane == 31) table_.note[thread_ / 32] = {{sum[0], sum[1]}, warp_end, warp_more};
    SyncThreads(kBarrier, 128);

    Batch batch{0, 0, 0, 0, false};
    end = kSlots;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      end = min(end, table_.note[w].end);
      batch.more |= table_.note[w].more;
    }
    uint32_t next_line = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (i >= end) break;
      const int lower = TapsOf(0, i) + TapsOf(1, i), upper = TapsOf(2, i) + TapsOf(3, i);
      const int lines = min(half_ == 0 ? lower : upper, Shape::kLines);
      const int before = (thread_ % Shape::kHalfRows >= 32 ? TapsOf(2 * half_, i) : 0) + Half(sum, i) - Half(pairs, i);
      const int first = min(before, kMostLine), count = max(0, min(Byte(own, i), Shape::kLines - first));
      next_line |= static_cast<uint32_t>(first) << 8 * i;
      batch.count |= static_cast<uint32_t>(count) << 8 * i;
      batch.lines |= static_cast<uint32_t>(lines) << 8 * i;
      if (lower + upper > 0) batch.live |= 1u << 8 * i;
      if (max(lower, upper) > Shape::kLines) {
        end = i + 1;
        batch.more = true;
      }
    }
    batch.first = next_line;

    const int32_t batch_rows = reader_.list().batch_rows;
#pragma unroll 1
    for (int i = 0; i < own_taps; ++i) {
      const int slot = reader_.Slot(i) - first_slot;
      if (slot >= end) break;
      const int line = Byte(next_line, slot);
      next_line += 1u << 8 * slot;
      if (line >= Shape::kLines) continue;
      table_.source[slot][half_][line % kLinesAtOnce][line / kLinesAtOnce] = batch_rows + reader_.Source(i);
    }
    reader_.Advance(Byte(batch.count, 0) + Byte(batch.count, 1) + Byte(batch.count, 2) + Byte(batch.count, 3));
    PublishNextSlot();
    return batch;
  }

  // One of 16-bit numbers, in pairs.
  KNNCONV_DEVICE static int Half(const uint32_t (&pairs)[2], int at) {
    return static_cast<int>(pairs[at / 2] >> 16 * (at % 2) & 0xffff);
  }

  // Taps that a warp has of slot i of those that are sorted.
  KNNCONV_DEVICE int TapsOf(int warp, int i) const {
    return Half(table_.note[warp].taps, i);
  }

  // Loads the steps of a round, the lines of sorted slot `sorted`.
  KNNCONV_DEVICE void LoadRound(const TapTile& tile, int slot, int sorted, LineSpan own, int lines, bool last) {
    constexpr int kChunk = 8, kThreadsOfLine = kStepDepth / kChunk, kMost = Shape::kLines / kLinesAtOnce;
    static_assert(kLinesAtOnce == Shape::kHalfRows / kThreadsOfLine && kLinesAtOnce % 8 == 0 && kMost % 4 == 0);
    const int row = thread_ % Shape::kHalfRows, chunk = row % kThreadsOfLine, lane = thread_ % 32;
    const int first = row / kThreadsOfLine;
    const int32_t line_bytes = plan_.gemm.depth * 2;
    const int32_t* const sources = table_.source[sorted][half_][first];
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      pipe_.Span(stage, row) = own;
      if (row == 0) pipe_.Note(stage) = StepNote{ends, false, 0, 0}.Pack();
      if (ends) {
        const uint32_t unwritten = __ballot_sync(kAllLanes, reader_.list().hub);
        if (lane == 0) pipe_.Unwritten(stage, row / 32) = unwritten;
      }
      if (thread_ == 0) {
        pipe_.EmptyWeights(weights_.stage).Wait(weights_.parity ^ 1);
        Barrier& full = pipe_.FullWeights(weights_.stage);
        full.ArriveExpecting(Shape::kBytesB);
        LoadWeights<Shape>(plan_, pipe_.B(weights_.stage), &full, tile, channel, slot);
        weights_.Advance();
      }
      __syncwarp();
      if (lane == 0) pipe_.Full(stage).Arrive();
      const bool in_depth = channel + chunk * kChunk < plan_.gemm.depth;
      const char* const from = static_cast<const char*>(plan_.gemm.source) + (channel + chunk * kChunk) * 2;
      // Lines 8 apart have the same swizzle.
      uint32_t to = SharedAddress(pipe_.Lines(stage)) + first * 128 + ((chunk ^ first % 8) << 4);
#pragma unroll 1
      for (int i = 0; i * kLinesAtOnce < lines; i += 4) {
        const int4 four = *reinterpret_cast<const int4*>(sources + i);
        const int32_t source[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // lines behind the last are zeros that nobody reads
          const bool exists = in_depth && first + (i + j) * kLinesAtOnce < lines;
          CopyChunk(to + j * kLinesAtOnce * 128, RowAt(from, source[j], line_bytes), exists);
        }
        to += 4 * kLinesAtOnce * 128;
      }
      pipe_.Full(stage).ArriveAfterCopies();
      place_.Advance();
    }
    reader_.EndRound();
  }

  const TapPlan& plan_;
  const CellPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  CellTable<Shape>& table_;
  const int thread_, half_, steps_;
  typename Shape::Reader reader_;
  typename CellPipe<Shape>::Place place_;
  typename CellPipe<Shape>::WeightPlace weights_;  // of the thread that loads them
  int turn_ = 0;
};

}  // namespace knnconv::hopper
