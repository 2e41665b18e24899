#include "hopper/dweight_reduce.h"

#include <algorithm>

#include "gpu/elements.h"

namespace knnconv::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 4;       // parts that a thread loads at a time
constexpr int kBiasLanes = 128;  // threads that share a sum of db

struct DweightReduction {
  DweightTask task;
  DweightTileSize tile;
  int32_t lanes;  // threads that share a sum of dw: each adds every lanes-th part, then theirs are added in order
  int32_t blocks_of_tile;
  int64_t weight_blocks;  // the others sum db
  int32_t slots, channels;
  void *dw, *db;
  gpu::Element dw_type, db_type;
};

KNNCONV_DEVICE void Add(float4* sum, const float4& value) {
  sum->x += value.x;
  sum->y += value.y;
  sum->z += value.z;
  sum->w += value.w;
}

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

// Where four sums are of dw: of two rows, 8 apart, two neighbours (MultiplyAdd says which). Rows are channels and
// neighbours columns, or rows columns and neighbours channels.
struct DweightPlace {
  int slot, channel, column;
  bool exists;
};

// The place of the float4 with number `at` of a part.
KNNCONV_DEVICE DweightPlace PlaceOf(const DweightReduction& r, int32_t list, int32_t tile, int at) {
  const DweightSchedule& schedule = r.task.schedule;
  const DweightTileSize& size = r.tile;
  const int width = size.width();
  const int thread = at % 128, eight = at / 128 % (width / 8), block = at / (16 * width);
  const int row = thread / 32 * 16 + thread % 32 / 4, neighbour = eight * 8 + thread % 4 * 2;
  const int first_column = tile % schedule.column_tiles * size.columns;
  int box = tile / schedule.column_tiles * size.row_boxes(), tap = 0;
  DweightPlace place;
  if (size.is_turned()) {
    (size.has_strips() ? tap : box) += neighbour / kBox;
    box += block / size.column_boxes() * size.boxes;
    place.channel = neighbour % kBox;
    place.column = first_column + block % size.column_boxes() * kBox + row;
  } else {
    box += block;
    place.channel = row;
    place.column = first_column + neighbour;
  }
  place.channel += box % r.task.channel_boxes * kBox;
  place.slot = list + box / r.task.channel_boxes * size.taps + tap;
  place.exists = box < r.task.boxes && place.channel < r.channels && place.column < r.task.columns;
  return place;
}

KNNCONV_DEVICE void StorePair(const DweightReduction& r, const DweightPlace& place, float first, float second) {
  const int64_t row = int64_t{place.slot} * r.channels + place.channel;
  StorePair(r.dw, r.dw_type, row * r.task.columns + place.column, first, second);
}

KNNCONV_DEVICE void StoreSums(const DweightReduction& r, DweightPlace place, const float4& sum) {
  StorePair(r, place, sum.x, sum.y);
  place.channel += 8;
  if (place.channel < r.channels) StorePair(r, place, sum.z, sum.w);
}

// Of turned tiles: threads of neighbouring columns exchange halves, so that each has pairs of them. Whole warps call.
KNNCONV_DEVICE void StoreTurned(const DweightReduction& r, DweightPlace place, const float4& sum, bool stores) {
  constexpr int kNeighbour = 4;  // lanes
  const bool odd = threadIdx.x / kNeighbour % 2 != 0;
  const float upper = __shfl_xor_sync(0xffffffff, odd ? sum.x : sum.y, kNeighbour);
  const float lower = __shfl_xor_sync(0xffffffff, odd ? sum.z : sum.w, kNeighbour);
  if (!stores) return;
  place.channel += odd ? 1 : 0;
  place.column -= odd ? 1 : 0;
  StorePair(r, place, odd ? upper : sum.x, odd ? sum.y : upper);
  place.column += 8;
  if (place.column < r.task.columns) StorePair(r, place, odd ? lower : sum.z, odd ? sum.w : lower);
}

// A block has kThreads / lanes times four sums of one tile, which lie in a part as a warpgroup's threads held them.
KNNCONV_DEVICE void ReduceWeight(const DweightReduction& r, float4* shared) {
  const DweightSchedule& schedule = r.task.schedule;
  const int32_t tile_number = static_cast<int32_t>(blockIdx.x / r.blocks_of_tile);
  const int32_t list = tile_number / schedule.tiles_of_list(), tile = tile_number % schedule.tiles_of_list();
  const int width = kThreads / r.lanes, lane = threadIdx.x / width;
  const int at = static_cast<int>(blockIdx.x % r.blocks_of_tile) * width + threadIdx.x % width;
  const DweightPlace place = PlaceOf(r, list, tile, at);
  float4 sum = {0, 0, 0, 0};
  if (place.exists) {
    const DweightParts parts = PartsOf(schedule, list, tile);
    const int64_t pitch = r.tile.elements() / 4;
    const float4* const partials = reinterpret_cast<const float4*>(r.task.partials) + at;
    for (int32_t part = parts.first + lane; part < parts.end; part += kBatch * r.lanes) {
      float4 loaded[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (part + i * r.lanes < parts.end) loaded[i] = partials[(part + i * r.lanes) * pitch];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) Add(&sum, loaded[i]);
    }
  }
  if (r.lanes > 1) {
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (lane == 0) {
      for (int other = 1; other < r.lanes; ++other) Add(&sum, shared[other * width + threadIdx.x]);
    }
  }
  const bool stores = lane == 0 && place.exists;
  if (r.tile.is_turned()) {
    StoreTurned(r, place, sum, stores);
  } else if (stores) {
    StoreSums(r, place, sum);
  }
}

// The lane's share of the sums of boxes: parts of all row tiles, as if each tile had as many as one may have.
KNNCONV_DEVICE float4 AddBoxSums(const DweightReduction& r, int lane, int column) {
  const DweightSchedule& schedule = r.task.schedule;
  const int sums = BiasParts(r.tile.columns), quads = r.tile.columns / 4;
  const float4* const partials =
      reinterpret_cast<const float4*>(r.task.bias_partials) + column % r.tile.columns / 4;
  // A part that neither begins nor ends its tile has at least so many steps as the shortest stretch of a block.
  const int32_t shortest = max(schedule.Length() / schedule.blocks, 1), most = (schedule.steps / shortest + 2) * sums;
  float4 sum = {0, 0, 0, 0};
  for (int32_t at = lane; at < schedule.row_tiles * most; at += kBiasLanes) {
    const DweightParts parts = PartsOf(schedule, 0, at / most * schedule.column_tiles + column / r.tile.columns);
    const int32_t part = parts.first + at % most / sums;
    if (part < parts.end) Add(&sum, partials[int64_t{part} * (kBiasSums / 4) + at % sums * quads]);
  }
  return sum;
}

// The lane's share of the sums of rows.
KNNCONV_DEVICE float4 AddRowSums(const DweightReduction& r, int lane, int column) {
  const int chunks = static_cast<int>(CeilDiv(r.task.columns, kBiasSums)), chunk = column / kBiasSums;
  const int columns = min(r.task.columns - chunk * kBiasSums, kBiasSums), sums = BiasParts(columns);
  const float4* const partials = reinterpret_cast<const float4*>(r.task.bias_partials) + column % kBiasSums / 4;
  float4 sum = {0, 0, 0, 0};
  for (int32_t at = lane; at < r.task.schedule.blocks * sums; at += kBiasLanes) {
    const int64_t part = int64_t{at / sums} * chunks + chunk;
    Add(&sum, partials[part * (kBiasSums / 4) + at % sums * (columns / 4)]);
  }
  return sum;
}

// A block has kThreads / kBiasLanes times four columns. Lanes' sums are added pairwise.
KNNCONV_DEVICE void ReduceBias(const DweightReduction& r, int64_t block, float4* shared) {
  constexpr int kWidth = kThreads / kBiasLanes;
  const int lane = threadIdx.x / kWidth;
  const int column = static_cast<int>(block * kWidth + threadIdx.x % kWidth) * 4;
  float4 sum = {0, 0, 0, 0};
  if (column < r.task.columns) sum = r.task.SumsBoxes() ? AddBoxSums(r, lane, column) : AddRowSums(r, lane, column);
  for (int half = kBiasLanes / 2; half > 0; half /= 2) {
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (lane < half) Add(&sum, shared[threadIdx.x + half * kWidth]);
    __syncthreads();
  }
  if (lane != 0 || column >= r.task.columns) return;
  StorePair(r.db, r.db_type, column, sum.x, sum.y);
  StorePair(r.db, r.db_type, column + 2, sum.z, sum.w);
}

__global__ void __launch_bounds__(kThreads) ReduceKernel(const KNNCONV_PARAMETER DweightReduction reduction) {
  __shared__ float4 shared[kThreads];
  if (blockIdx.x < reduction.weight_blocks) {
    ReduceWeight(reduction, shared);
  } else {
    ReduceBias(reduction, blockIdx.x - reduction.weight_blocks, shared);
  }
}

// A thread adds about four parts.
int LanesOf(const DweightSchedule& schedule) {
  const int parts = schedule.blocks / schedule.tiles() + 1;
  int lanes = 1;
  while (lanes < 16 && lanes * kBatch < parts) lanes *= 2;
  return lanes;
}

}  // namespace

gpu::Status RunDweightReduce(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const DweightTask& task,
                             const DweightTileSize& tile) {
  DweightReduction reduction;
  reduction.task = task;
  reduction.tile = tile;
  reduction.lanes = LanesOf(task.schedule);
  reduction.blocks_of_tile = static_cast<int32_t>(tile.elements() / 4 * reduction.lanes / kThreads);
  reduction.weight_blocks = int64_t{task.schedule.tiles()} * reduction.blocks_of_tile;
  reduction.slots = dweight.slots;
  reduction.channels = dweight.channels;
  reduction.dw = dweight.dw;
  reduction.db = dweight.db;
  reduction.dw_type = dweight.dw_type;
  reduction.db_type = dweight.db_type;
  const int64_t bias_blocks = dweight.db == nullptr ? 0 : CeilDiv(dweight.columns, kThreads / kBiasLanes * 4);
  return gpu::Launch<ReduceKernel, 0>(site, reduction.weight_blocks + bias_blocks, kThreads, reduction);
}

}  // namespace knnconv::hopper
