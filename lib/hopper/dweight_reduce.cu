#include "hopper/dweight_reduce.h"

#include <algorithm>

#include "gpu/dependent_launch.h"
#include "hopper/dweight_place.h"

namespace knnconv::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksAtOnce = 4;  // of a multiprocessor
constexpr int kBatch = 4;         // parts that a thread loads at a time
constexpr int kMostLanes = 32;
constexpr int kBiasLanes = 128;  // threads that share a sum of db
constexpr int kBiasBatch = 6;    // as kBatch

KNNCONV_DEVICE void AddOtherLanes(float4* sum, int distance) {
  Add(sum, {__shfl_xor_sync(kAllLanes, sum->x, distance), __shfl_xor_sync(kAllLanes, sum->y, distance),
            __shfl_xor_sync(kAllLanes, sum->z, distance), __shfl_xor_sync(kAllLanes, sum->w, distance)});
}

KNNCONV_DEVICE void AddOtherLanes(EightSums* sums, int distance) {
  AddOtherLanes(&sums->first, distance);
  AddOtherLanes(&sums->second, distance);
}

// Adds the sums of a block's lanes, each of `width` threads: those of a warp pairwise, then warps in order. The first
// lane has the result.
template <typename Sums>
KNNCONV_DEVICE void AddLanes(int width, Sums* shared, Sums* sums) {
  for (int distance = width; distance < 32; distance *= 2) AddOtherLanes(sums, distance);
  shared[threadIdx.x] = *sums;
  __syncthreads();
  if (threadIdx.x >= width) return;
  for (int other = max(width, 32); other < kThreads; other += max(width, 32)) Add(sums, shared[other + threadIdx.x]);
}

// A block has kThreads / lanes times eight sums of one tile, which lie in a part as a warpgroup's threads held them.
KNNCONV_DEVICE void ReduceWeight(const DweightReduction& r, int64_t number, EightSums* shared) {
  const gpu::Divisor::Result in_tile = r.by_blocks_of_tile.Divide(static_cast<int>(number));
  const gpu::Divisor::Result in_list = r.by_tiles_of_list.Divide(in_tile.quotient);
  const int32_t list = in_list.quotient, tile = in_list.remainder;
  const int width = kThreads / r.lanes;  // a power of two, and at least the 8 threads that share a line of memory
  const int lane = threadIdx.x / width, unit = in_tile.remainder * width + threadIdx.x % width;
  const int thread = unit % 128, pair = unit / 128;
  const DweightParts parts = PartsOf(r.task.schedule, list, tile);
  const int64_t pitch = r.tile.elements() / 4;
  const float4* const partials = reinterpret_cast<const float4*>(r.task.partials) + pair * 256 + thread;
  EightSums sums = {};
  WaitForPrerequisites();
  for (int32_t part = parts.first + lane; part < parts.end; part += kBatch * r.lanes) {
    EightSums loaded[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float4* const from = partials + (part + i * r.lanes) * pitch;
      if (part + i * r.lanes < parts.end) loaded[i] = {from[0], from[128]};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) Add(&sums, loaded[i]);
  }
  if (r.lanes > 1) AddLanes(width, shared, &sums);
  if (threadIdx.x / 32 * 32 >= width) return;
  const DweightPlace place = PlaceOf(r, list, tile, thread, pair);
  const bool stores = lane == 0 && place.exists;
  if (r.tile.has_strips()) {
    StoreOfStrips(r, place, sums, stores);
  } else if (stores) {
    StoreOfBoxes(r, place, sums);
  }
}

// The lane's share of the sums of boxes of a list: parts of all row tiles, as if each tile had as many as one may have.
KNNCONV_DEVICE float4 AddBoxSums(const DweightReduction& r, int list, int lane, int column) {
  const DweightSchedule& schedule = r.task.schedule;
  const int sums = BiasParts(r.tile.columns), quads = r.tile.columns / 4;
  const float4* const partials =
      reinterpret_cast<const float4*>(r.task.bias_partials) + column % r.tile.columns / 4;
  // A part that neither begins nor ends its tile has at least so many steps as the shortest stretch of a block.
  const int32_t shortest = max(schedule.Length() / schedule.blocks, 1), most = (schedule.steps / shortest + 2) * sums;
  float4 sum = {0, 0, 0, 0};
  for (int32_t first = lane; first < schedule.row_tiles * most; first += kBiasBatch * kBiasLanes) {
    const float4* from[kBiasBatch];
#pragma unroll
    for (int i = 0; i < kBiasBatch; ++i) {
      const int32_t at = first + i * kBiasLanes;
      from[i] = nullptr;
      if (at >= schedule.row_tiles * most) continue;
      const DweightParts parts = PartsOf(schedule, list, at / most * schedule.column_tiles + column / r.tile.columns);
      const int32_t part = parts.first + at % most / sums;
      if (part < parts.end) from[i] = partials + int64_t{part} * (kBiasSums / 4) + at % sums * quads;
    }
    WaitForPrerequisites();
    float4 loaded[kBiasBatch] = {};
#pragma unroll
    for (int i = 0; i < kBiasBatch; ++i) {
      if (from[i] != nullptr) loaded[i] = *from[i];
    }
#pragma unroll
    for (int i = 0; i < kBiasBatch; ++i) Add(&sum, loaded[i]);
  }
  return sum;
}

// The lane's share of the sums of rows of a group of the result.
KNNCONV_DEVICE float4 AddRowSums(const DweightReduction& r, int group, int lane, int column) {
  const int chunks = static_cast<int>(CeilDiv(r.task.columns, kBiasSums)), chunk = column / kBiasSums;
  const int columns = min(r.task.columns - chunk * kBiasSums, kBiasSums), sums = BiasParts(columns);
  const float4* const partials = reinterpret_cast<const float4*>(r.task.bias_partials) + column % kBiasSums / 4;
  float4 sum = {0, 0, 0, 0};
  const int shares = r.task.RowShares();
  WaitForPrerequisites();
  for (int32_t first = lane; first < shares * sums; first += kBiasBatch * kBiasLanes) {
    float4 loaded[kBiasBatch] = {};
#pragma unroll
    for (int i = 0; i < kBiasBatch; ++i) {
      const int32_t at = first + i * kBiasLanes;
      const int64_t part = (int64_t{group} * shares + at / sums) * chunks + chunk;
      if (at < shares * sums) loaded[i] = partials[part * (kBiasSums / 4) + at % sums * (columns / 4)];
    }
#pragma unroll
    for (int i = 0; i < kBiasBatch; ++i) Add(&sum, loaded[i]);
  }
  return sum;
}

// A block has kThreads / kBiasLanes times four columns of a group of the result.
KNNCONV_DEVICE void ReduceBias(const DweightReduction& r, int block, float4* shared) {
  constexpr int kWidth = kThreads / kBiasLanes;
  const int lane = threadIdx.x / kWidth;
  const int blocks = (r.task.columns + kWidth * 4 - 1) / (kWidth * 4), group = block / blocks;
  const int column = ((block - group * blocks) * kWidth + static_cast<int>(threadIdx.x) % kWidth) * 4;
  float4 sum = {0, 0, 0, 0};
  if (column < r.task.columns) {
    sum = r.task.SumsBoxes() ? AddBoxSums(r, group, lane, column) : AddRowSums(r, group, lane, column);
  }
  AddLanes(kWidth, shared, &sum);
  if (lane != 0 || column >= r.task.columns) return;
  const int64_t at = int64_t{group} * r.task.columns + column;
  StorePair(r.db, r.db_type, at, sum.x, sum.y);
  StorePair(r.db, r.db_type, at + 2, sum.z, sum.w);
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    ReduceKernel(const KNNCONV_PARAMETER DweightReduction reduction) {
  __shared__ EightSums shared[kThreads];
  // Of db first: theirs are the longest chains of loads.
  const int64_t bias_blocks = gridDim.x - reduction.weight_blocks;
  if (blockIdx.x < bias_blocks) {
    ReduceBias(reduction, static_cast<int>(blockIdx.x), reinterpret_cast<float4*>(shared));
  } else {
    ReduceWeight(reduction, blockIdx.x - bias_blocks, shared);
  }
}

int64_t BlocksOfTile(const DweightTileSize& tile, int lanes) { return tile.elements() / 8 * lanes / kThreads; }

// So many that a thread adds about kBatch parts, while all blocks run at once.
int LanesOf(const DweightSchedule& schedule, const DweightTileSize& tile) {
  const int parts = schedule.blocks / schedule.tiles() + 1;
  const int64_t most_blocks = int64_t{kBlocksAtOnce} * schedule.blocks;
  int lanes = 1;
  while (lanes < kMostLanes && lanes * kBatch < parts &&
         schedule.tiles() * BlocksOfTile(tile, 2 * lanes) <= most_blocks) {
    lanes *= 2;
  }
  return lanes;
}

}  // namespace

gpu::Status RunDweightReduce(const gpu::LaunchSite& site, const gpu::Dweight& dweight, const DweightTask& task,
                             const DweightTileSize& tile) {
  DweightReduction reduction;
  reduction.task = task;
  reduction.tile = tile;
  reduction.lanes = LanesOf(task.schedule, tile);
  const auto blocks_of_tile = static_cast<uint32_t>(BlocksOfTile(tile, reduction.lanes));
  reduction.by_blocks_of_tile = gpu::Divisor(blocks_of_tile);
  reduction.by_tiles_of_list = gpu::Divisor(static_cast<uint32_t>(task.schedule.tiles_of_list()));
  reduction.by_column_tiles = gpu::Divisor(static_cast<uint32_t>(task.schedule.column_tiles));
  reduction.by_pairs = gpu::Divisor(static_cast<uint32_t>(tile.width() / 16));
  reduction.by_channel_boxes = gpu::Divisor(static_cast<uint32_t>(task.channel_boxes));
  reduction.weight_blocks = int64_t{task.schedule.tiles()} * blocks_of_tile;
  reduction.channels = dweight.channels;
  reduction.dw = dweight.dw;
  reduction.db = dweight.db;
  reduction.dw_type = dweight.dw_type;
  reduction.db_type = dweight.db_type;
  reduction.slots_of_list = task.schedule.offsets != nullptr ? 1 : dweight.slots;
  const int64_t bias_blocks =
      dweight.db == nullptr ? 0 : task.results * CeilDiv(dweight.columns, kThreads / kBiasLanes * 4);
  return gpu::LaunchDependent<ReduceKernel>(site, reduction.weight_blocks + bias_blocks, kThreads, reduction);
}

}  // namespace knnconv::hopper
