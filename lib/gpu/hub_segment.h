// A hub's part of a unit:
//
//     partial[b, :] = sum over cells (taps of one slot):
//                         (sum over the cell's taps of source[b, row, :]) @ weight[slot]^T
//
// in fp32. A block has one segment, of kHubTaps taps at most, and one batch entry at a time: its threads lie over rows
// and chunks of the depth and add up a cell's rows, then over columns and chunks. What bounds it: latency where hubs
// are few, else reading the rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/elements.h"
#include "gpu/hub_search.h"

namespace knnconv::gpu::hub {

// How a row of the source and a line of a weight are read: kWidth elements at a time, 8 where both are aligned.
template <typename T_, int kWidth_>
struct Reading {
  using T = T_;
  static constexpr int kWidth = kWidth_;
  using Chunk = std::conditional_t<kWidth == 8, uint4, T>;
  static constexpr int kMostChunks = kWidth == 1 ? kThreads : 64;  // of a row, at a time
  static constexpr int kElements = kMostChunks * kWidth;
};

template <typename T>
union EightElements {
  uint4 bits;
  T value[8];
  KNNCONV_DEVICE explicit EightElements(const uint4& bits) : bits(bits) {}
};

template <typename Reading>
KNNCONV_DEVICE typename Reading::Chunk ReadChunk(const typename Reading::T* from) {
  return ReadOnly(reinterpret_cast<const typename Reading::Chunk*>(from));
}

template <typename Reading>
KNNCONV_DEVICE void Widen(const typename Reading::Chunk& chunk, float (&values)[Reading::kWidth]) {
  if constexpr (Reading::kWidth == 1) {
    values[0] = ToFloat(chunk);
  } else {
    const EightElements<typename Reading::T> elements(chunk);
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] = ToFloat(elements.value[e]);
  }
}

KNNCONV_DEVICE int PowerOfTwo(int64_t least, int most) {
  int power = 1;
  while (power < least && power < most) power *= 2;
  return power;
}

// Adds `value` over the threads of each column of [kThreads / width, width]; a column's first thread has the sum.
KNNCONV_DEVICE float AddColumns(float value, int width, float* scratch) {
  scratch[threadIdx.x] = value;
  for (int rows = kThreads / width / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < rows * width) scratch[threadIdx.x] += scratch[threadIdx.x + rows * width];
  }
  __syncthreads();
  const float sum = scratch[threadIdx.x % width];
  __syncthreads();
  return sum;
}

// One past the last of the taps from `begin` that have its slot; slots ascend.
KNNCONV_DEVICE int CellEnd(const int32_t* slot, int begin, int taps) {
  int low = begin + 1, high = taps;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (slot[middle] == slot[begin]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// What a block holds of its segment.
template <typename Reading>
struct SegmentRoom {
  int32_t source[kHubTaps], slot[kHubTaps];
  float result[kThreads];          // of so many columns
  float sums[Reading::kElements];  // of a cell's rows
  float scratch[kThreads];
  float parts[kThreads * Reading::kWidth];  // of sums
};

// sums[:] = the sum of `count` elements of the rows of the taps [begin, end), from `rows` on. Threads lie over lines of
// `chunks`.
template <typename Reading>
KNNCONV_DEVICE void AddRows(SegmentRoom<Reading>& room, int chunks, const typename Reading::T* rows, int depth,
                            int count, int begin, int end) {
  constexpr int kWidth = Reading::kWidth, kInFlight = 4;
  const int chunk = threadIdx.x % chunks, line = threadIdx.x / chunks, lines = kThreads / chunks;
  float sum[kWidth] = {};
  if (chunk * kWidth < count) {
    rows += chunk * kWidth;
    for (int first = begin + line; first < end; first += kInFlight * lines) {
      typename Reading::Chunk read[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        read[i] = ReadChunk<Reading>(rows + int64_t{room.source[min(first + i * lines, end - 1)]} * depth);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + i * lines >= end) continue;
        float value[kWidth];
        Widen<Reading>(read[i], value);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[e] += value[e];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) room.parts[threadIdx.x * kWidth + e] = sum[e];
  __syncthreads();
  const int elements = chunks * kWidth, width = min(elements, kThreads);
  const int column = threadIdx.x % width, part = threadIdx.x / width, lines_of_part = lines / (kThreads / width);
  for (int first = 0; first < elements; first += width) {
    float value = 0.0f;
    for (int i = 0; i < lines_of_part; ++i) {
      value += room.parts[(part * lines_of_part + i) * elements + first + column];
    }
    value = AddColumns(value, width, room.scratch);
    if (part == 0) room.sums[first + column] = value;
  }
  __syncthreads();
}

// result[p] += sums[:count] * lines[p][:count], of `columns` lines that lie `depth` apart. A group of lanes has a line,
// and several such in flight.
template <typename Reading>
KNNCONV_DEVICE void AddProducts(SegmentRoom<Reading>& room, int chunks, const typename Reading::T* lines, int depth,
                                int count, int columns) {
  constexpr int kWidth = Reading::kWidth, kInFlight = 4;
  const int width = min(chunks, kGroupLanes), lane = threadIdx.x % width, groups = kThreads / width;
  // All lanes of a warp stay in step: they add up together.
  for (int first = 0; first < columns; first += kInFlight * groups) {
    const int p = first + threadIdx.x / width;
    float product[kInFlight] = {};
    for (int d = lane * kWidth; d < count; d += width * kWidth) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (p + i * groups >= columns) continue;
        float value[kWidth];
        Widen<Reading>(ReadChunk<Reading>(lines + int64_t{p + i * groups} * depth + d), value);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) product[i] += room.sums[d + e] * value[e];
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const float sum = GroupSum(product[i], width);
      if (lane == 0 && p + i * groups < columns) room.result[p + i * groups] += sum;
    }
  }
  __syncthreads();
}

// Calls store(column, value) for each column of the segment's sum for batch entry `b`. `source` and `weight` are the
// group's. By all threads; the room has the segment's taps.
template <typename Reading, typename Store>
KNNCONV_DEVICE void SumSegment(SegmentRoom<Reading>& room, const TapGemm& gemm, const typename Reading::T* source,
                               const typename Reading::T* weight, int64_t b, int taps, const Store& store) {
  const int chunks = PowerOfTwo((gemm.depth + Reading::kWidth - 1) / Reading::kWidth, Reading::kMostChunks);
  const int elements = chunks * Reading::kWidth, t = threadIdx.x;
  source += b * gemm.source_rows * gemm.depth;
  for (int first = 0; first < gemm.columns; first += kThreads) {
    const int columns = min(kThreads, gemm.columns - first);
    room.result[t] = 0.0f;
    __syncthreads();
    for (int begin = 0, end; begin < taps; begin = end) {
      end = CellEnd(room.slot, begin, taps);
      const auto* lines = weight + (int64_t{room.slot[begin]} * gemm.columns + first) * gemm.depth;
      for (int d = 0; d < gemm.depth; d += elements) {
        const int count = min(elements, gemm.depth - d);
        AddRows(room, chunks, source + d, gemm.depth, count, begin, end);
        AddProducts(room, chunks, lines + d, gemm.depth, count, columns);
      }
    }
    if (t < columns) store(first + t, room.result[t]);
    __syncthreads();
  }
}

}  // namespace knnconv::gpu::hub
