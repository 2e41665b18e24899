// Forward over a table without slots, where a sample of x lies in shared memory.
//
//     out[b, n, :] = bias + sum over slots:  x[b, indices[n, slot], :] @ weight[slot]
//
//     A [64 nodes, 64 channels] = lines of the sample, by the table   (shared memory -> registers)
//     B [64 channels, 64 columns] = the slot's weights                (shared memory, all slots, from start to end)
//
// A block copies a sample once, where tiles of tap_kernel.h copy each node's rows again for each of its taps. Its
// warpgroups take strips of 64 nodes; the threads of one load their rows' channels 16 bytes at a time and multiply them
// from registers. A thread has the channels 8q..8q+7 and 32+8q..32+8q+7 of its rows, q = lane % 4. So a product of 16
// channels sums those of the first 32 whose number modulo 8 is below 4, the next one the others of these, and two more
// likewise the last 32; weights lie in shared memory in that order. What bounds it: shared memory, which gives a
// strip's tap 8 KB of x and 8 KB of weights in as many cycles as its products take, and the start.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/elements.h"
#include "gpu/lanes.h"
#include "hopper/device.h"
#include "hopper/ptx.h"
#include "hopper/sample_launch.h"
#include "hopper/sample_place.h"
#include "hopper/sample_write.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

inline constexpr int kSampleConsumers = 128 * kSampleWarpgroups;
inline constexpr int kSampleThreads = kSampleConsumers + 32;  // the last warp loads samples

// A block's shared memory.
class SampleRoom {
 public:
  KNNCONV_DEVICE SampleRoom(unsigned char* shared, const SampleTask& task)
      : task_(task), weights_(shared + (1024 - SharedAddress(shared) % 1024) % 1024),
        samples_(weights_ + task.slots * kSampleMatrixBytes),
        bias_(reinterpret_cast<float*>(samples_ + task.samples_held * task.sample_room)) {}

  KNNCONV_DEVICE unsigned char* Weights(int slot) const { return weights_ + slot * kSampleMatrixBytes; }
  // Lines of a sample, and one of zeros behind them.
  KNNCONV_DEVICE unsigned char* Sample(int place) const { return samples_ + place * task_.sample_room; }
  KNNCONV_DEVICE unsigned char* Zeros(int place) const { return Sample(place) + task_.sources * kSampleLineBytes; }
  KNNCONV_DEVICE float* Bias() const { return bias_; }
  KNNCONV_DEVICE Barrier& HasWeights(int slot) const { return barriers()[slot]; }
  KNNCONV_DEVICE Barrier& Full(int place) const { return barriers()[task_.slots + place]; }
  KNNCONV_DEVICE Barrier& Empty(int place) const { return barriers()[task_.slots + task_.samples_held + place]; }

 private:
  KNNCONV_DEVICE Barrier* barriers() const { return reinterpret_cast<Barrier*>(bias_ + kSampleColumns); }

  const SampleTask& task_;
  unsigned char *const weights_, *const samples_;
  float* const bias_;
};

// The part of a sample that an item is.
struct SampleItem {
  int sample, first, end;  // strips
};

KNNCONV_DEVICE SampleItem ItemOf(const SampleTask& task, int item) {
  const gpu::Divisor::Result at = task.by_parts.Divide(item);
  const auto strip_of = [&](int part) { return task.by_parts.Divide(part * task.strips).quotient; };
  return {at.quotient, strip_of(at.remainder), strip_of(at.remainder + 1)};
}

// By one thread.
KNNCONV_DEVICE void LoadSample(const SampleTask& task, const SampleRoom& room, int item, int place) {
  const int64_t bytes = int64_t{task.sources} * kSampleLineBytes;
  const char* const from = static_cast<const char*>(task.x) + task.by_parts.Divide(item).quotient * bytes;
  room.Full(place).ArriveExpecting(static_cast<int>(bytes));
  LoadBytes(room.Sample(place), from, static_cast<int>(bytes), &room.Full(place));
}

// By the consumers, each 16 bytes of every slot's matrix: lines in the order in which products read them. The bias
// comes with the first one.
KNNCONV_DEVICE void LoadSampleWeights(const SampleTask& task, const SampleRoom& room) {
  static_assert(kSampleConsumers * 16 == kSampleMatrixBytes);
  const int thread = static_cast<int>(threadIdx.x), line = thread / 8, chunk = thread % 8;
  const int channel = line / 32 * 32 + line % 8 / 2 * 8 + line / 8 % 4 * 2 + line % 2;
  const int64_t matrix = int64_t{kSampleChannels} * task.columns * 2;
  const char* from = static_cast<const char*>(task.weight) + int64_t{channel} * task.columns * 2 + chunk * 16;
  uint32_t to = SharedAddress(room.Weights(0)) + line * 128 + (chunk ^ line % 8) * 16;
  if (task.bias != nullptr && thread < task.columns) CopyWord(room.Bias() + thread, task.bias + thread);
  for (int slot = 0; slot < task.slots; ++slot, from += matrix, to += kSampleMatrixBytes) {
    CopyChunk(to, from, chunk * 8 < task.columns);
    room.HasWeights(slot).ArriveAfterCopies();
  }
}

// A thread of the warpgroups that multiply.
template <typename T>
class SampleProducts {
  static constexpr int kSlices = kSampleChannels / 16;

 public:
  KNNCONV_DEVICE SampleProducts(const SampleTask& task, const SampleRoom& room, int warpgroup)
      : task_(task), room_(room), warpgroup_(warpgroup), lane_(threadIdx.x % 32),
        row_(static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4),
        weights_(Describe<Major::kMN>(room.Weights(0))) {
    Enter(ItemOf(task, static_cast<int>(blockIdx.x)).first + warpgroup);
  }

  KNNCONV_DEVICE void Run() {
    SamplePlace place;
    for (int number = blockIdx.x; number < task_.items; number += gridDim.x) {
      const SampleItem item = ItemOf(task_, number);
      if (number != blockIdx.x) Enter(item.first + warpgroup_);
      room_.Full(place.place).Wait(place.parity);
      sample_ = SharedAddress(room_.Sample(place.place)) + lane_ % 4 * 16;
      for (int strip = item.first + warpgroup_; strip < item.end; strip += kSampleWarpgroups) {
        Multiply();
        const uint32_t nearest[2] = {nearest_[0], nearest_[1]};
        if (strip + kSampleWarpgroups < item.end) {
          Enter(strip + kSampleWarpgroups);
        } else {
          Leave(place.place);
        }
        WriteSampleRows<T>(task_, room_.Bias(), item.sample, strip * kSampleRows + row_, nearest, sums_);
      }
      if (item.first + warpgroup_ >= item.end) Leave(place.place);
      place.Advance(task_.samples_held);
    }
  }

 private:
  // The sources of a tap of two rows.
  struct Pair {
    uint32_t index[2];
  };

  // Gives a sample back that the warp reads no more.
  KNNCONV_DEVICE void Leave(int place) const { room_.Empty(place).ArriveAsWarp(); }

  // Begins to read the taps of a strip. Rows behind the last node are as the last one, and not written.
  KNNCONV_DEVICE void Enter(int strip) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int node = min(strip * kSampleRows + row_ + 8 * i, task_.nodes - 1);
      taps_[i] = task_.indices + node * task_.slots;
      nearest_[i] = ~0u;
    }
    next_ = TapAt(0);
    later_ = TapAt(min(1, task_.slots - 1));
  }

  KNNCONV_DEVICE Pair TapAt(int slot) const {
    return {{static_cast<uint32_t>(gpu::ReadOnly(taps_[0] + slot)),
             static_cast<uint32_t>(gpu::ReadOnly(taps_[1] + slot))}};
  }

  // Reads the rows of a tap, as operands of its products. Half of a quarter warp's lanes read their upper channels
  // first: so 8 lanes, of two rows, meet all banks. Holes read the zeros behind the sample.
  KNNCONV_DEVICE void Load(const uint32_t (&line)[2]) {
    const bool upper = lane_ / 4 % 2 != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 first = LoadShared(line[i] + (upper ? 64 : 0)), second = LoadShared(line[i] + (upper ? 0 : 64));
      const uint4 low = upper ? second : first, high = upper ? first : second;
      words_[0][i] = low.x, words_[0][i + 2] = low.y, words_[1][i] = low.z, words_[1][i + 2] = low.w;
      words_[2][i] = high.x, words_[2][i + 2] = high.y, words_[3][i] = high.z, words_[3][i + 2] = high.w;
    }
#pragma unroll
    for (int i = 0; i < kSlices * 4; ++i) asm volatile("" : "+r"(words_[i / 4][i % 4])::"memory");
  }

  // Adds up a strip. While products of a tap are under way, others' are, of three more warpgroups.
  KNNCONV_DEVICE void Multiply() {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
    for (int slot = 0; slot < task_.slots; ++slot) {
      uint32_t line[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t row = min(next_.index[i], static_cast<uint32_t>(task_.sources));
        nearest_[i] = min(nearest_[i], row);
        line[i] = sample_ + row * kSampleLineBytes;
      }
      next_ = later_;
      if (slot + 2 < task_.slots) later_ = TapAt(slot + 2);
      if (!has_weights_) {
        room_.HasWeights(slot).Wait(0);
        FenceAsyncProxy();  // threads have written them, not the copy engine
      }
      WaitForProducts(words_, task_.slots);  // which read the words that come next
      PinSums(sums_);
      Load(line);
      const uint64_t weights = weights_ + static_cast<uint64_t>(slot * (kSampleMatrixBytes / 16));
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        MultiplyAdd<T, kSampleColumns, Major::kMN>(sums_, words_[slice], weights + slice * kDepthAdvance<Major::kMN>);
      }
      CommitProducts();
    }
    WaitForProducts(words_, task_.slots);
    PinSums(sums_);
    has_weights_ = true;
  }

  const SampleTask& task_;
  const SampleRoom& room_;
  const int warpgroup_, lane_;
  const int row_;  // of a strip, the lane's first; the other one is 8 further on
  const uint64_t weights_;
  const int32_t* taps_[2];  // of the strip's rows
  Pair next_, later_;       // taps
  uint32_t nearest_[2];     // source of a row's taps: the least of them, that of a row of holes is none
  uint32_t sample_ = 0;     // where the lane's first channels of source 0 lie
  bool has_weights_ = false;
  uint32_t words_[kSlices][4] = {};  // of two rows: channels 8q..8q+7, then 32+8q..32+8q+7
  float sums_[kSampleColumns / 2];
};

template <typename T>
__global__ void __launch_bounds__(kSampleThreads, 1) SampleKernel(const KNNCONV_PARAMETER SampleTask task) {
  extern __shared__ unsigned char shared[];
  const SampleRoom room(shared, task);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(kAllLanes, thread / 32, 0);
  if (warp == kSampleConsumers / 32) {
    const bool loads = thread == kSampleConsumers;
    if (loads) {
      for (int slot = 0; slot < task.slots; ++slot) room.HasWeights(slot).Init(kSampleConsumers);
      for (int place = 0; place < task.samples_held; ++place) {
        room.Full(place).Init(1);
        room.Empty(place).Init(kSampleConsumers / 32 * kWarpArrivals);
      }
      FenceBarrierInit();
      LoadSample(task, room, static_cast<int>(blockIdx.x), 0);  // under way while threads meet
    }
    __syncthreads();
    SamplePlace place;
    for (int item = static_cast<int>(blockIdx.x + gridDim.x); item < task.items; item += gridDim.x) {
      place.Advance(task.samples_held);
      room.Empty(place.place).Wait(place.parity ^ 1);
      if (loads) LoadSample(task, room, item, place.place);
    }
  } else {
    if (thread < kSampleColumns && task.bias == nullptr) room.Bias()[thread] = 0.0f;
    for (int place = 0; place < task.samples_held; ++place) {
      if (thread < kSampleLineBytes / 4) reinterpret_cast<uint32_t*>(room.Zeros(place))[thread] = 0;
    }
    SampleProducts<T> products(task, room, warp / 4);
    __syncthreads();
    LoadSampleWeights(task, room);
    products.Run();
    gpu::WaitForCopies<0>();  // a warp without strips has not waited for those of weights
  }
}

template <typename T>
gpu::Status LaunchSamples(const gpu::LaunchSite& site, const SampleTask& task, int64_t blocks, int shared_bytes) {
  return gpu::LaunchSized<SampleKernel<T>>(site, blocks, kSampleThreads, shared_bytes, kMostBlockBytes, task);
}

}  // namespace knnconv::hopper
