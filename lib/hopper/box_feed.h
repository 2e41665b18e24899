// The producer: one warp that walks over the taps of the block's tiles and lets the copy engine fetch their boxes.
//
// A table supplies coordinates of boxes {64 channels, 1 node, 128 batch entries}; a window supplies offsets of 128
// pixels that follow each other. Holes are coordinates outside the source: the copy engine writes zeros.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_split.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

inline constexpr int kWarp = 32;

// Loads every slot's matrix, for all teams; by one thread, with the first team's pipe.
template <typename Shape>
KNNCONV_DEVICE void LoadResident(const TapPlan& plan, const Pipe<Shape>& pipe) {
  pipe.Resident().ArriveExpecting(plan.gemm.slots * Shape::kSlotBytes);
  for (int slot = 0; slot < plan.gemm.slots; ++slot) {
    LoadWeights<Shape>(plan, pipe.Weights(slot), &pipe.Resident(), TapTile{}, 0, slot);
  }
}

template <typename Shape>
class BoxFeeder {
 public:
  KNNCONV_DEVICE BoxFeeder(const TapPlan& plan, const Pipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), lane_(threadIdx.x % kWarp),
        taps_(*reinterpret_cast<LiveTaps*>(pipe.Taps())), steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth),
        step_bytes_(StepBytes(plan)) {
    static_assert(Shape::kOnlyPixels || sizeof(LiveTaps) <= Pipe<Shape>::kTapBytes);
  }

  KNNCONV_DEVICE void Run() {
    if constexpr (Shape::kOnlyPixels) {
      if (lane_ == 0) RunWindow();
    } else if (plan_.gemm.kind == gpu::Taps::kWindow) {
      if (lane_ == 0) RunWindow();
    } else {
      RunTable();
    }
  }

 private:
  KNNCONV_DEVICE static int StepBytes(const TapPlan& plan) {
    if (Shape::kOnlyPixels || plan.gemm.kind == gpu::Taps::kWindow) return Shape::kStageBytes;
    return Shape::kBoxes * plan.box_rows * kStepDepth * 2 + Shape::kBytesB;
  }

  // Loads steps [begin, end) of one tap, the last with `note`; by one lane. `load_a(to, full, channel)` fetches A.
  template <typename LoadA>
  KNNCONV_DEVICE void LoadTap(const TapTile& tile, int slot, StepNote note, int begin, int end, const LoadA& load_a) {
    for (int step = begin; step < end; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      StepNote own{false, false, 0, 0};
      if (step == end - 1) own = note;
      if constexpr (Shape::kResident) own.slot = static_cast<uint32_t>(slot);
      pipe_.Note(stage) = own.Pack();
      Barrier& full = pipe_.Full(stage);
      full.ArriveExpecting(step_bytes_);
      load_a(pipe_.A(stage), &full, channel);
      if constexpr (!Shape::kResident) {
        LoadWeights<Shape>(plan_, pipe_.B(stage), &full, tile, channel, slot);
      }
      place_.Advance();
    }
  }

  // Leaves a stage free for a tile's results.
  KNNCONV_DEVICE void LendStage() {
    pipe_.Empty(place_.stage).Wait(place_.parity ^ 1);
    pipe_.Full(place_.stage).Arrive();
    place_.Advance();
  }

  KNNCONV_DEVICE void RunWindow() {
    const int32_t kernel_width = plan_.gemm.window.kernel[1];
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const TapTile tile = walk_.Tile(turn);
      if (walk_.IsEmpty(tile)) continue;
      const PixelClass& pixels = plan_.classes[tile.pixel_class];
      const PixelPlace first = PlaceOf(pixels, tile.row_tile * Shape::kRows);
      const int group = plan_.groups.source_rows > 0 ? tile.group : 0;
      const auto image = static_cast<int>(first.image + group * plan_.gemm.batch);
      const int h = pixels.corner[0] + first.i * gpu::StepOf(plan_.gemm.window, 0);
      const int w = pixels.corner[1] + first.j * gpu::StepOf(plan_.gemm.window, 1);
      const PixelLine vertical = pixels.line[0], horizontal = pixels.line[1];
      const CUtensorMap* map = &plan_.source[tile.pixel_class];
      const int taps = vertical.count * horizontal.count;
      for (int i = 0, tap = 0; i < vertical.count; ++i) {
        for (int j = 0; j < horizontal.count; ++j, ++tap) {
          const int slot = (vertical.slot + i * vertical.slot_step) * kernel_width + horizontal.slot +
                           j * horizontal.slot_step;
          const int offset_h = vertical.offset + i * vertical.offset_step;
          const int offset_w = horizontal.offset + j * horizontal.offset_step;
          LoadTap(tile, slot, {tap == taps - 1, false, 0, 0}, 0, steps_, [&](char* to, Barrier* full, int channel) {
            LoadPixels(to, map, full, channel, w, h, image, offset_w, offset_h);
          });
        }
      }
      if (taps == 0) {  // zeros, from beyond the last image, but from within its bounding box
        LoadTap(tile, gpu::kHole, {true, false, 0, 0}, 0, steps_, [&](char* to, Barrier* full, int channel) {
          LoadPixels(to, map, full, channel, pixels.corner[1], pixels.corner[0], static_cast<int>(plan_.images), 0, 0);
        });
      }
      if constexpr (Shape::kLendsStage) LendStage();
    }
  }

  // The taps of a tile: entries [begin[box], begin[box] + count) of the table. Tables with lists of taps have tiles of
  // one node. Of a tile that blocks share, the first and the last tap may have some of their steps in another block.
  struct TapSpan {
    TapTile tile;
    TableBox box[Shape::kBoxes];
    int64_t begin[Shape::kBoxes];
    int count;
    int first;  // entry of the list
    int first_step, end_step;  // of the first tap, and behind the last one's
    bool hub;
  };

  KNNCONV_DEVICE TapSpan SpanOf(int64_t turn) const {
    TapSpan span{};
    if (!walk_.Has(turn)) return span;
    const gpu::TapGemm& gemm = plan_.gemm;
    span.tile = walk_.Tile(turn);
    const int64_t first = span.tile.group * plan_.groups.taps;
#pragma unroll
    for (int i = 0; i < Shape::kBoxes; ++i) {
      span.box[i] = walk_.Box(span.tile, i);
      span.begin[i] = first + span.box[i].node * gemm.table.columns;
    }
    span.count = gemm.table.columns;
    if (gemm.kind == gpu::Taps::kSources) {
      const NodeList list = walk_.List(turn, span.tile, span.box[0]);
      span.hub = list.hub;
      span.count = list.count;
#pragma unroll
      for (int i = 0; i < Shape::kBoxes; ++i) span.begin[i] = first + list.begin;
    }
    span.first_step = 0;
    span.end_step = steps_;
    if constexpr (Shape::kSplit > 1) TakeShare(walk_.Steps(turn, span.count * steps_), &span);
    return span;
  }

  // Leaves this block's share of a list.
  KNNCONV_DEVICE void TakeShare(StepRange steps, TapSpan* span) const {
    const auto [begin, end] = steps;
    const int first = begin / steps_, behind = (end + steps_ - 1) / steps_;
    span->count = end > begin ? behind - first : 0;
    if (span->count == 0) return;
    span->begin[0] += first;
    span->first = first;
    span->first_step = begin - first * steps_;
    span->end_step = end - (behind - 1) * steps_;
  }

  // A lane's tap among 32; the slot is gpu::kHole where it has none.
  struct LaneTap {
    int32_t node[Shape::kBoxes];
    int32_t slot;
  };

  // In shared memory: the taps of 32 lanes that are no holes, and their lanes, for the blocks that share a list.
  struct LiveTaps {
    LaneTap tap[kWarp];
    uint8_t lane[Shape::kSplit > 1 ? kWarp : 1];
  };

  // A tap, and where it stands in the span of a block that shares a list.
  struct HeldTap {
    LaneTap tap;
    int at;
    bool exists;
  };

  KNNCONV_DEVICE LaneTap TapOf(const TapSpan& span, int first) const {
    const gpu::TapGemm& gemm = plan_.gemm;
    const int at = first + lane_;
    LaneTap tap;
    tap.slot = gpu::kHole;
#pragma unroll
    for (int i = 0; i < Shape::kBoxes; ++i) {
      tap.node[i] = gpu::kHole;
      if (at >= span.count || span.box[i].node >= gemm.nodes) continue;
      tap.node[i] = gemm.table.sources[span.begin[i] + at];
      tap.slot = gemm.kind == gpu::Taps::kColumns ? span.first + at : gemm.table.slots[span.begin[0] + at];
    }
    return tap;
  }

  // Of a list that blocks share, whether this lane finds a tap in all of it: each block writes some of the columns.
  KNNCONV_DEVICE uint32_t AliveOf(const TapSpan& span) const {
    const gpu::TapGemm& gemm = plan_.gemm;
    const int64_t begin = span.begin[0] - span.first;
    for (int at = lane_; at < gemm.table.columns; at += kWarp) {
      const int32_t slot = gemm.kind == gpu::Taps::kColumns ? at : gemm.table.slots[begin + at];
      if (!gpu::IsRow(gemm.table.sources[begin + at], gemm.source_rows)) continue;
      if (static_cast<uint32_t>(slot) < static_cast<uint32_t>(gemm.slots)) return 1;
    }
    return 0;
  }

  KNNCONV_DEVICE void RunTable() {
    // Loads of the table are under way while the steps before them are issued.
    TapSpan span = SpanOf(0);
    LaneTap ahead = TapOf(span, 0);
    TapSpan after = SpanOf(1);
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      // Lane 0's: the last live tap so far waits to know whether it is the tile's last. At first a hole, for zeros.
      HeldTap held{};
      held.tap.slot = gpu::kHole;
#pragma unroll
      for (int32_t& node : held.tap.node) node = gpu::kHole;
      held.at = -1;
      uint32_t alive = 0;
      int first = 0;
      do {
        LaneTap tap = ahead;
        const int chunk = first;
        first += kWarp;
        ahead = first < span.count ? TapOf(span, first) : TapOf(after, 0);
        bool live = false;
        if (static_cast<uint32_t>(tap.slot) < static_cast<uint32_t>(plan_.gemm.slots)) {
#pragma unroll
          for (int i = 0; i < Shape::kBoxes; ++i) {
            if (!gpu::IsRow(tap.node[i], plan_.gemm.source_rows)) {
              tap.node[i] = gpu::kHole;
            } else {
              live = true;
              alive |= 1u << i;
            }
          }
        }
        const uint32_t lives = __ballot_sync(kAllLanes, live);
        if (live) {
          const int place = __popc(lives & ((1u << lane_) - 1));
          taps_.tap[place] = tap;
          if constexpr (Shape::kSplit > 1) taps_.lane[place] = static_cast<uint8_t>(lane_);
        }
        __syncwarp();
        if (lane_ == 0) LoadAllButLast(span, chunk, __popc(lives), &held);
        __syncwarp();
      } while (first < span.count);
      const TapSpan later = SpanOf(turn + 2);
      if (Shape::kSplit > 1 && plan_.gemm.zero_empty_rows) alive = AliveOf(span);
      if (plan_.gemm.zero_empty_rows) alive = __reduce_or_sync(kAllLanes, alive);
      const uint32_t dead = plan_.gemm.zero_empty_rows ? ~alive & ((1u << Shape::kBoxes) - 1) : 0;
      if (lane_ == 0) LoadTableTap(span, held, {true, span.hub, dead, 0});
      if constexpr (Shape::kSplit > 1) {
        const bool adds = walk_.Adds(turn) && !span.hub;
        if (lane_ == 0 && adds) OpenStages(pipe_, walk_.rank(), shared_tiles_++, &place_);
      }
      span = after;
      after = later;
    }
  }

  // Loads `held`, if it exists, and the taps of taps_ but for the last, which is held then. By one lane: were lanes to
  // part and meet for each tap, one of 64 channels would take the producer 1000 cycles. `chunk`: the first lane's entry
  // of the span.
  KNNCONV_DEVICE void LoadAllButLast(const TapSpan& span, int chunk, int count, HeldTap* held) {
    for (int i = 0; i < count; ++i) {
      if (held->exists) LoadTableTap(span, *held, {false, false, 0, 0});
      *held = {taps_.tap[i], Shape::kSplit > 1 ? chunk + taps_.lane[i] : 0, true};
    }
  }

  KNNCONV_DEVICE void LoadTableTap(const TapSpan& span, const HeldTap& held, StepNote note) {
    const LaneTap& tap = held.tap;
    const int at = held.at;
    int begin = 0, end = steps_;
    if constexpr (Shape::kSplit > 1) {
      if (at == 0) begin = span.first_step;
      if (at == span.count - 1) end = span.end_step;
    }
    LoadTap(span.tile, tap.slot, note, begin, end, [&](char* to, Barrier* full, int channel) {
#pragma unroll
      for (int i = 0; i < Shape::kBoxes; ++i) {
        char* const box = to + i * kBoxRows * kStepDepth * 2;
        if (plan_.groups.source_rows == 0) {
          LoadBox(box, &plan_.source[0], full, channel, tap.node[i], span.box[i].first);
        } else {
          LoadBox(box, &plan_.source[0], full, channel, tap.node[i], span.box[i].first, span.tile.group);
        }
      }
    });
  }

  const TapPlan& plan_;
  const Pipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int lane_;
  LiveTaps& taps_;
  const int steps_, step_bytes_;
  typename Pipe<Shape>::Place place_;
  uint32_t shared_tiles_ = 0;  // with other blocks, so far
};

}  // namespace knnconv::hopper
