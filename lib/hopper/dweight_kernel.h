// Weight and bias gradients on Hopper: one tile of dw over a stretch of its depth.
//
//     dw[r, o] = sum over positions:  x[source(position, slot of r), channel of r] * g[row(position), o]
//
//              positions (in steps of 32)                     columns, in boxes of 64
//     rows   [ x: box after box of 64 channels ]  @  positions [ g                    ]
//
// A step's boxes lie in shared memory as they lie in memory, a position a line of 128 bytes: both operands of the product
// are read along their lines (Major::kMN), so that nothing is transposed. A table gives the coordinates of x's boxes, 32
// batch entries of one node; for a dense convolution boxes are 32 pixels, moved by the slot's offset. A hole is a
// box outside the tensor: zeros, and nothing is read.
//
// One warp issues copies, a lane a box; two warps sum g's columns for db; each of the other warpgroups multiplies its row boxes
// by all columns. What bounds it: filling shared memory from L2, (rows + columns) for rows * columns products, so
// tiles are as large as the registers hold. Partial sums leave as they lie in registers: 16 bytes a thread.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "gpu/dweight_plan.h"
#include "gpu/elements.h"
#include "hopper/dweight_plan.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

enum class TapsKind : int { kColumns, kSlots, kDense };

// All that a launch of the kernel takes beside the tensor maps.
struct DweightTask {
  DweightSchedule schedule;
  TapsKind kind;
  int32_t boxes;          // rows of a list
  int32_t channel_boxes;  // of a slot
  int32_t columns;        // of dw
  int32_t chain;          // steps whose products lie in one chain in the accumulators
  gpu::NeighborTable table;
  const int32_t* rows;     // of the slot order's taps
  const int32_t* sources;  // of the slot order's taps
  gpu::DenseTaps dense;
  float* partials;       // a tile for each part
  float* bias_partials;  // kBiasSums for each part; null: no db
};

template <int kWarpgroups_, int kBoxes_, int kColumns_>
struct DweightTile {
  static constexpr int kWarpgroups = kWarpgroups_, kBoxes = kBoxes_, kColumns = kColumns_;  // kBoxes: of a warpgroup
  static constexpr int kRowBoxes = kWarpgroups * kBoxes, kColumnBoxes = kColumns / kBox;
  static constexpr int kElements = kRowBoxes * kBox * kColumns;
  static constexpr int kThreads = (1 + kWarpgroups) * 128;

  static constexpr int kStageBytes = (kRowBoxes + kColumnBoxes) * kBoxBytes;
  static constexpr int kRoom = 227 * 1024 - 1024 - 256;  // less what aligning the stages and the barriers take
  static constexpr int kStages = kRoom / kStageBytes < 16 ? kRoom / kStageBytes : 16;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024 + 256;
  static_assert(kStages >= 3 && kRowBoxes + kColumnBoxes <= 32);

  // One product's columns: with three warpgroups the compiler takes no instruction with 128 sums.
  static constexpr int kProductColumns = kWarpgroups == 3 && kColumns == 256 ? 128 : kColumns;
  static constexpr int kParts = kColumns / kProductColumns;

  // Of the 65,536 registers of a multiprocessor. A single warpgroup has enough as it is.
  static constexpr bool kMovesRegisters = kWarpgroups > 1;
  static constexpr int kProductRegisters = kWarpgroups < 3 ? 224 : kBoxes * kColumns == 256 ? 160 : 152;
  static constexpr int kProducerRegisters = kProductRegisters == 160 ? 32 : 56;
};

// The stages that steps pass through.
template <typename Tile>
struct DweightRing {
  // Where a warp is in the ring, and how often it came by.
  struct Place {
    int stage = 0;
    uint32_t parity = 0;

    KNNCONV_DEVICE void Advance() {
      if (++stage < Tile::kStages) return;
      stage = 0;
      parity ^= 1;
    }
  };

  unsigned char* stages;
  Barrier* full;
  Barrier* empty;

  KNNCONV_DEVICE unsigned char* RowBox(int stage, int box) const {
    return stages + stage * Tile::kStageBytes + box * kBoxBytes;
  }
  KNNCONV_DEVICE unsigned char* ColumnBoxes(int stage) const { return RowBox(stage, Tile::kRowBoxes); }
};

// Coordinates of the pixel where a step of a dense convolution begins.
class PixelWalk {
 public:
  KNNCONV_DEVICE PixelWalk(const gpu::DenseTaps& taps, int64_t position) : taps_(taps) {
    const int64_t line = position / taps.out_size[1];
    w_ = static_cast<int32_t>(position - line * taps.out_size[1]);
    image_ = static_cast<int32_t>(line / taps.out_size[0]);
    h_ = static_cast<int32_t>(line - int64_t{image_} * taps.out_size[0]);
  }

  KNNCONV_DEVICE void Advance() {
    w_ += kStep % taps_.out_size[1];
    h_ += kStep / taps_.out_size[1];
    if (w_ >= taps_.out_size[1]) {
      w_ -= taps_.out_size[1];
      ++h_;
    }
    image_ += h_ / taps_.out_size[0];
    h_ %= taps_.out_size[0];
  }

  KNNCONV_DEVICE int w() const { return w_ * taps_.stride[1] - taps_.padding[1]; }
  KNNCONV_DEVICE int h() const { return h_ * taps_.stride[0] - taps_.padding[0]; }
  KNNCONV_DEVICE int image() const { return image_; }

 private:
  const gpu::DenseTaps& taps_;
  int32_t w_, h_, image_;
};

// One thread of a warp, the same each time. Unlike a comparison of lanes, the compiler knows that it is one, so that copies
// under it take their operands from uniform registers without a loop over lanes.
KNNCONV_DEVICE bool IsElected() {
  uint32_t is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
}

// The warp that issues copies. Lanes below kRowBoxes know where a box of x comes from, the next one where g's do; the copies
// are issued one after the other.
template <typename Tile>
class DweightProducer {
 public:
  KNNCONV_DEVICE DweightProducer(const DweightTask& task, const CUtensorMap* x, const CUtensorMap* g)
      : task_(task), x_(x), g_(g), lane_(threadIdx.x % 32) {}

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      const bool multiplies = segment.list < task_.schedule.lists;
      const int first_box = segment.row_tile * Tile::kRowBoxes;
      first_column_ = segment.column_tile * Tile::kColumns;
      row_boxes_ = multiplies ? min(Tile::kRowBoxes, task_.boxes - first_box) : 0;
      column_boxes_ = min(Tile::kColumnBoxes, (task_.columns - first_column_ + kBox - 1) / kBox);
      first_channel_ = first_box % task_.channel_boxes * kBox;
      slot_ = segment.list + (first_box + lane_) / task_.channel_boxes;
      if (task_.kind == TapsKind::kDense) {
        RunDense(ring, segment);
      } else {
        RunTable(ring, segment);
      }
    }
  }

 private:
  // Waits until the stage is free, and issues a step's copies: of x's box b by load_x(to, b, channel), of g's by
  // load_g(to, column).
  template <typename LoadX, typename LoadG>
  KNNCONV_DEVICE void Step(const DweightRing<Tile>& ring, const LoadX& load_x, const LoadG& load_g) {
    ring.empty[place_.stage].Wait(place_.parity ^ 1);
    if (IsElected()) ring.full[place_.stage].ArriveExpecting((row_boxes_ + column_boxes_) * kBoxBytes);
    int channel = first_channel_;
#pragma unroll
    for (int box = 0; box < Tile::kRowBoxes; ++box) {
      if (box < row_boxes_) load_x(ring.RowBox(place_.stage, box), box, channel);
      channel = channel == (task_.channel_boxes - 1) * kBox ? 0 : channel + kBox;
    }
#pragma unroll
    for (int box = 0; box < Tile::kColumnBoxes; ++box) {
      if (box < column_boxes_) load_g(ring.RowBox(place_.stage, Tile::kRowBoxes + box), first_column_ + box * kBox);
    }
    place_.Advance();
  }

  KNNCONV_DEVICE void RunDense(const DweightRing<Tile>& ring, const DweightSegment& segment) {
    const gpu::DenseTaps& taps = task_.dense;
    constexpr int kShift = 16;
    const int offsets = slot_ / taps.kernel_width * taps.dilation[0] << kShift | slot_ % taps.kernel_width * taps.dilation[1];
    int position = segment.first * kStep;
    PixelWalk pixel(taps, position);
    for (int left = segment.steps; left > 0; --left) {
      Barrier* const full = &ring.full[place_.stage];
      Step(
          ring,
          [&](unsigned char* to, int box, int channel) {
            const int offset = __shfl_sync(0xffffffff, offsets, box);
            if (IsElected()) {
              LoadPixels(to, x_, full, channel, pixel.w(), pixel.h(), pixel.image(), offset & ((1 << kShift) - 1),
                         offset >> kShift);
            }
          },
          [&](unsigned char* to, int column) {
            if (IsElected()) LoadBox(to, g_, full, column, position);
          });
      pixel.Advance();
      position += kStep;
    }
  }

  KNNCONV_DEVICE void RunTable(const DweightRing<Tile>& ring, const DweightSegment& segment) {
    // Where this lane's nodes stand: in a column of the table or in the slot order; else they are the rows themselves.
    const bool is_source = lane_ < row_boxes_, is_row = lane_ == Tile::kRowBoxes;
    const int32_t* nodes = nullptr;
    int32_t pitch = 1;
    if (task_.kind == TapsKind::kColumns && is_source) {
      nodes = task_.table.indices + slot_;
      pitch = task_.table.neighbours;
    } else if (task_.kind == TapsKind::kSlots && segment.list < task_.schedule.lists) {
      nodes = (is_source ? task_.sources : task_.rows) + task_.schedule.Offset(segment.list);
    }
    const int32_t size = is_source ? task_.table.sources : task_.table.outputs;
    const auto node_of = [&](int32_t row) {
      return !is_source && !is_row ? -1 : nodes == nullptr ? row : __ldg(nodes + int64_t{row} * pitch);
    };
    DweightRows rows(task_.schedule, segment);
    int32_t node = node_of(rows.row());
    for (int left = segment.steps; left > 0; --left) {
      const int first = rows.part() * kStep;
      const int32_t box_node = static_cast<uint32_t>(node) < static_cast<uint32_t>(size) ? node : -1;
      rows.Advance();
      if (left > 1) node = node_of(rows.row());  // for the next step, while this one waits for its stage
      Barrier* const full = &ring.full[place_.stage];
      Step(
          ring,
          [&](unsigned char* to, int box, int channel) {
            const int at = __shfl_sync(0xffffffff, box_node, box);
            if (IsElected()) LoadBox(to, x_, full, channel, at, first);
          },
          [&](unsigned char* to, int column) {
            const int at = __shfl_sync(0xffffffff, box_node, Tile::kRowBoxes);
            if (IsElected()) LoadBox(to, g_, full, column, at, first);
          });
    }
  }

  const DweightTask& task_;
  const CUtensorMap *const x_, *const g_;
  const int lane_;
  typename DweightRing<Tile>::Place place_;

  int row_boxes_ = 0, column_boxes_ = 0;  // that exist
  int first_channel_ = 0, first_column_ = 0;
  int slot_ = 0;  // of this lane's box
};

// The two warps that sum g's columns. Row tiles take turns, row by row, so that none waits for it. A thread has four columns and every
// kParts-th position.
template <typename T, typename Tile>
class DweightBias {
  static constexpr int kQuads = Tile::kColumns / 4, kParts = BiasParts(Tile::kColumns);
  struct alignas(8) Four {
    T value[4];
  };

 public:
  static constexpr int kWarps = 2;

  KNNCONV_DEVICE DweightBias(const DweightTask& task, int thread) : task_(task), thread_(thread) {}

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      const bool sums = task_.kind != TapsKind::kSlots || segment.list == task_.schedule.lists;
      const int turns = task_.kind != TapsKind::kSlots ? task_.schedule.row_tiles : 1;
      float4 total = {0, 0, 0, 0};
      DweightRows rows(task_.schedule, segment);
      for (int left = segment.steps; left > 0; --left) {
        ring.full[place_.stage].Wait(place_.parity);
        if (sums && rows.row() % turns == segment.row_tile % turns && IsCounted(rows.row())) {
          Add(ring.ColumnBoxes(place_.stage), &total);
        }
        __syncwarp();
        if (thread_ % 32 == 0) ring.empty[place_.stage].Arrive();
        rows.Advance();
        place_.Advance();
      }
      if (sums) reinterpret_cast<float4*>(task_.bias_partials)[int64_t{segment.part} * (kBiasSums / 4) + thread_] = total;
    }
  }

 private:
  // Whether a row of g adds to db.
  KNNCONV_DEVICE bool IsCounted(int row) const {
    const gpu::NeighborTable& table = task_.table;
    if (!table.zero_empty_rows) return true;
    const int64_t first = int64_t{row} * table.neighbours;
    bool counted = false;
    for (int tap = thread_ % 32; tap < table.neighbours; tap += 32) {
      const bool has_slot = table.slots == nullptr || static_cast<uint32_t>(__ldg(table.slots + first + tap)) <
                                                          static_cast<uint32_t>(table.slot_count);
      const bool has_source =
          static_cast<uint32_t>(__ldg(table.indices + first + tap)) < static_cast<uint32_t>(table.sources);
      counted |= has_slot && has_source;
    }
    return __any_sync(0xffffffff, counted);
  }

  KNNCONV_DEVICE void Add(const unsigned char* boxes, float4* total) const {
    const int quad = thread_ % kQuads, part = thread_ / kQuads;
    if (part >= kParts) return;
    boxes += quad / (kBox / 4) * kBoxBytes + quad % 2 * 8;
    const int chunk = quad % (kBox / 4) / 2;  // of 16 bytes; chunks of a line are swizzled by its number
    float4 sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int line = part; line < kStep; line += kParts) {
      const Four four = *reinterpret_cast<const Four*>(boxes + line * 128 + (chunk ^ line % 8) * 16);
      sum.x += gpu::ToFloat(four.value[0]);
      sum.y += gpu::ToFloat(four.value[1]);
      sum.z += gpu::ToFloat(four.value[2]);
      sum.w += gpu::ToFloat(four.value[3]);
    }
    total->x += sum.x;
    total->y += sum.y;
    total->z += sum.z;
    total->w += sum.w;
  }

  const DweightTask& task_;
  const int thread_;
  typename DweightRing<Tile>::Place place_;
};

// A warpgroup that multiplies.
template <typename T, typename Tile>
class DweightProducts {
  static constexpr int kSums = Tile::kProductColumns / 2;  // of a thread in one product
  static constexpr int kProducts = Tile::kBoxes * Tile::kParts;
  static constexpr uint64_t kBoxUnits = kBoxBytes / 16;  // of a descriptor's address

 public:
  KNNCONV_DEVICE DweightProducts(const DweightTask& task, int warpgroup)
      : task_(task), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    const int first_box = warpgroup_ * Tile::kBoxes;
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      const bool multiplies = segment.list < task_.schedule.lists &&
                              segment.row_tile * Tile::kRowBoxes + first_box < task_.boxes;
      float* const out =
          task_.partials + int64_t{segment.part} * Tile::kElements + (int64_t{first_box} * kBox * Tile::kColumns + thread_ * 4);
      bool has_partial = false;
      // Chains end at different steps in each warpgroup: while one writes its sums, the others multiply.
      int chain = warpgroup_ * task_.chain / Tile::kWarpgroups;
      Clear();
      for (int left = segment.steps; left > 0; --left) {
        ring.full[place_.stage].Wait(place_.parity);
        if (multiplies) {
          FenceProducts();
          const uint64_t rows = Describe<Major::kMN>(ring.RowBox(place_.stage, first_box), kBoxBytes);
          const uint64_t columns = Describe<Major::kMN>(ring.ColumnBoxes(place_.stage), kBoxBytes);
#pragma unroll
          for (int depth = 0; depth < kStep / 16; ++depth) {
#pragma unroll
            for (int product = 0; product < kProducts; ++product) {
              const int box = product / Tile::kParts, part = product % Tile::kParts;
              MultiplyAdd<T, Tile::kProductColumns, Major::kMN, Major::kMN>(
                  sums_[product], rows + box * kBoxUnits + depth * kDepthAdvance<Major::kMN>,
                  columns + part * (Tile::kColumnBoxes / Tile::kParts) * kBoxUnits + depth * kDepthAdvance<Major::kMN>);
            }
          }
          CommitProducts();
          WaitForProducts<1>();
        }
        Release(ring);
        held_ = place_.stage;
        place_.Advance();
        if (++chain < task_.chain || left == 1) continue;
        WaitForProducts<0>();
        Release(ring);
        if (multiplies) Store(out, has_partial);
        Clear();
        has_partial = true;
        chain = 0;
      }
      WaitForProducts<0>();
      Release(ring);
      if (multiplies) Store(out, has_partial);
    }
  }

 private:
  // Gives back the stage before this one, whose products are done. Each warp does: where nothing is multiplied, the warps
  // of a warpgroup do not keep step.
  KNNCONV_DEVICE void Release(const DweightRing<Tile>& ring) {
    if (held_ >= 0 && thread_ % 32 == 0) ring.empty[held_].Arrive();
    held_ = -1;
  }

  KNNCONV_DEVICE void Clear() {
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[product][i] = 0;
      PinSums(sums_[product]);
    }
  }

  // Writes the sums, or adds them to what this thread wrote before.
  KNNCONV_DEVICE void Store(float* out, bool add) {
    constexpr int kBatch = 4;
    float4* const to = reinterpret_cast<float4*>(out);
#pragma unroll
    for (int product = 0; product < kProducts; ++product) PinSums(sums_[product]);
#pragma unroll
    for (int first = 0; first < kProducts * kSums / 4; first += kBatch) {
      float4 before[kBatch] = {};
      if (add) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) before[i] = to[(first + i) * 128];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float* const sum = sums_[(first + i) / (kSums / 4)] + (first + i) % (kSums / 4) * 4;
        to[(first + i) * 128] = {before[i].x + sum[0], before[i].y + sum[1], before[i].z + sum[2], before[i].w + sum[3]};
      }
    }
  }

  const DweightTask& task_;
  const int warpgroup_, thread_;
  typename DweightRing<Tile>::Place place_;
  int held_ = -1;  // the stage that products may still read
  float sums_[kProducts][kSums];
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    DweightKernel(const KNNCONV_PARAMETER CUtensorMap x, const KNNCONV_PARAMETER CUtensorMap g,
                  const KNNCONV_PARAMETER DweightTask task) {
  extern __shared__ unsigned char shared[];
  DweightRing<Tile> ring;
  ring.stages = shared + (1024 - SharedAddress(shared) % 1024) % 1024;
  ring.full = reinterpret_cast<Barrier*>(ring.stages + Tile::kStages * Tile::kStageBytes);
  ring.empty = ring.full + Tile::kStages;
  const int warp = Uniform(static_cast<int>(threadIdx.x / 32)), warpgroup = warp / 4;
  const bool has_bias = task.bias_partials != nullptr;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      ring.full[stage].Init(1);
      ring.empty[stage].Init(4 * Tile::kWarpgroups + (has_bias ? DweightBias<T, Tile>::kWarps : 0));
    }
    FenceBarrierInit();
    FenceAsyncProxy();
    PrefetchTensorMap(&x);
    PrefetchTensorMap(&g);
  }
  __syncthreads();
  if (warpgroup == 0) {
    if constexpr (Tile::kMovesRegisters) ShrinkRegisters<Tile::kProducerRegisters>();
    if (warp == 0) {
      DweightProducer<Tile>(task, &x, &g).Run(ring);
    } else if (has_bias && warp <= DweightBias<T, Tile>::kWarps) {
      DweightBias<T, Tile>(task, static_cast<int>(threadIdx.x) - 32).Run(ring);
    }
  } else {
    if constexpr (Tile::kMovesRegisters) GrowRegisters<Tile::kProductRegisters>();
    DweightProducts<T, Tile>(task, warpgroup - 1).Run(ring);
  }
}

}  // namespace knnconv::hopper
