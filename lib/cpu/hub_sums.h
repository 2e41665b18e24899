// Sums of source rows over long lists of taps.
//
// fp32 cannot count past 2^24 one by one, so a list is summed in blocks of bounded length, the blocks in spans, and the
// spans in order. The tree follows from the list's length alone. Cells with more than one span (hubs) are summed ahead
// of the pass, spread over all threads.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa/isa.h"
#include "cpu/knn_tiles.h"

namespace knnconv::cpu {

inline constexpr int64_t kSumBlock = 1024;
inline constexpr int64_t kSumSpan = 16 * kSumBlock;

// dst[i] = sum over t of float(base[rows[t] * stride + i]) for i < n <= kTileDepth; stride in elements.
void SumTaps(const Isa& isa, Source read, const char* base, int64_t stride, const int32_t* rows, int64_t count,
             int64_t n, float* dst);

class HubSums {
 public:
  // Finds and sums the hubs of every group. Memory: one [batch, D] float matrix for every kSumSpan taps of hubs.
  HubSums(ffi::ThreadPool& pool, const Isa& isa, const KnnPass& pass, const SourceTaps& taps);

  // The sums [batch, D] of a group's hub whose taps start at `rows`.
  const float* Find(int64_t group, const int32_t* rows) const;

 private:
  struct Hub {
    const int32_t* rows;
    int64_t count, group, first_span;
  };

  std::vector<Hub> hubs_;  // by group, then by address of the first tap
  std::vector<float> sums_;  // [span][batch][D]; a hub's total is in its first span
  int64_t matrix_;           // batch * D
};

// One past the last of the taps from `begin` that have its slot; slots ascend.
int64_t CellEnd(const int32_t* slots, int64_t begin, int64_t end);

// A 64-bit offset stored as two int32 words, low word first.
inline int64_t SourceOffset(const int32_t* offsets, int64_t node) {
  return static_cast<int64_t>(static_cast<uint32_t>(offsets[2 * node])) |
         static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(offsets[2 * node + 1])) << 32);
}

}  // namespace knnconv::cpu
