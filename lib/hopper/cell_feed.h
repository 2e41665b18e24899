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
    return walk_.Has(turn) ? ListOf(plan_.gemm, walk_.Tile(turn).row_tile * Shape::kRows + thread_) : TapList{};
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
    constexpr int kSlots = Shape::kSlots, kSeen = Shape::Reader::kMostAhead;
    static_assert(kSlots == 4 && kSeen * Shape::kHalfRows < 1 << 16);
    const int lane = thread_ % 32;
    reader_.Prepare(kSeen);
    const int seen = min(reader_.left(), kSeen);
    uint32_t own[2] = {0, 0};
    int taps = 0, end = kSlots, last = 0;
#pragma unroll 1
    for (; taps < seen; ++taps) {
      const int slot = reader_.Slot(taps) - first_slot;
      if (slot >= kSlots) break;
      own[slot / 2] += 1u << 16 * (slot % 2);
      last = slot;
    }
    if (taps == seen && seen < reader_.left()) end = last + 1;
    __syncwarp();

    uint32_t sum[2] = {own[0], own[1]};
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
      for (uint32_t& pair : sum) {
        const uint32_t before = __shfl_up_sync(kAllLanes, pair, step);
        if (lane >= step) pair += before;
      }
    }
    const int warp_end = __reduce_min_sync(kAllLanes, end);
    const bool warp_more = __any_sync(kAllLanes, taps < reader_.left());
    if (lane == 31) table_.note[thread_ / 32] = {{sum[0], sum[1]}, warp_end, warp_more};
    SyncThreads(kBarrier, 128);

    Batch batch{0, 0, 0, 0, false};
    uint32_t lines[2] = {0, 0};
    end = kSlots;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      end = min(end, table_.note[w].end);
      batch.more |= table_.note[w].more;
    }
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      bool is_live = false, is_full = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int all = TapsOf(2 * half, i) + TapsOf(2 * half + 1, i);
        is_live |= all > 0;
        is_full |= all > Shape::kLines;
        if (half == half_) lines[i / 2] |= static_cast<uint32_t>(min(all, Shape::kLines)) << 16 * (i % 2);
      }
      if (i >= end) break;
      if (is_live) batch.live |= 1u << 8 * i;
      batch.lines |= (lines[i / 2] >> 16 * (i % 2) & 0xff) << 8 * i;
      if (is_full) {
        end = i + 1;
        batch.more = true;
      }
    }

    int done = 0;
    const int32_t batch_rows = reader_.list().batch_rows;
    const bool is_odd = thread_ % Shape::kHalfRows >= 32;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (i >= end) break;
      const int count = static_cast<int>(own[i / 2] >> 16 * (i % 2) & 0xffff);
      const int before = is_odd ? TapsOf(2 * half_, i) : 0;
      const int first = before + static_cast<int>(sum[i / 2] >> 16 * (i % 2) & 0xffff) - count;
      const int takes = max(0, min(count, Shape::kLines - first));
#pragma unroll 1
      for (int j = 0; j < takes; ++j) {
        const int32_t source = reader_.Source(done + j);
        const bool is_row = gpu::IsRow(source, plan_.gemm.source_rows);
        const int line = first + j;
        table_.source[i][half_][line % kLinesAtOnce][line / kLinesAtOnce] = is_row ? batch_rows + source : gpu::kHole;
      }
      done += takes;
      if (takes > 0) batch.first |= static_cast<uint32_t>(first) << 8 * i;
      batch.count |= static_cast<uint32_t>(takes) << 8 * i;
    }
    reader_.Advance(done);
    PublishNextSlot();
    return batch;
  }

  // Taps that a warp has of slot i of those that are sorted.
  KNNCONV_DEVICE int TapsOf(int warp, int i) const {
    return static_cast<int>(table_.note[warp].taps[i / 2] >> 16 * (i % 2) & 0xffff);
  }

  // Loads the steps of a round, the lines of sorted slot `sorted`.
  KNNCONV_DEVICE void LoadRound(const TapTile& tile, int slot, int sorted, LineSpan own, int lines, bool last) {
    constexpr int kChunk = 8, kThreadsOfLine = kStepDepth / kChunk, kMost = Shape::kLines / kLinesAtOnce;
    static_assert(kLinesAtOnce == Shape::kHalfRows / kThreadsOfLine && kLinesAtOnce % 8 == 0 && kMost % 4 == 0);
    const int row = thread_ % Shape::kHalfRows, chunk = row % kThreadsOfLine, lane = thread_ % 32;
    const int first = row / kThreadsOfLine;
    const int64_t line_bytes = int64_t{plan_.gemm.depth} * 2;
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
        LoadBox(pipe_.B(weights_.stage), &plan_.weight, &full, channel, tile.first_column, slot);
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
        for (int j = 0; j < 4; ++j) {
          if (first + (i + j) * kLinesAtOnce >= lines) break;
          const bool exists = in_depth && source[j] >= 0;
          CopyChunk(to + j * kLinesAtOnce * 128, exists ? from + source[j] * line_bytes : plan_.gemm.source, exists);
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
