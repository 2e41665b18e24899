// Forward over a table without slots whose samples fit into a multiprocessor's shared memory: when that is so, and how
// samples are cut for thread blocks (sample_kernel.h says how they are computed).
#pragma once

#include <cstdint>

#include "gpu/tap_gemm.h"

namespace knnconv::hopper {

inline constexpr int kSampleChannels = 64;
inline constexpr int kSampleLineBytes = kSampleChannels * 2;
inline constexpr int kSampleColumns = 64;    // at most
inline constexpr int kSampleRows = 64;       // of a product: a *strip* of nodes
inline constexpr int kSampleWarpgroups = 4;  // of a block, that multiply a strip each
inline constexpr int kMostSamples = 2;       // that a block holds at once
inline constexpr int kSampleMatrixBytes = kSampleChannels * kSampleColumns * 2;  // a slot's weights

// How a launch cuts its samples. Nothing of it changes a bit of the result.
struct SampleCut {
  int32_t strips = 0;         // of a sample
  int32_t parts = 0;          // of a sample, whose strips differ by one at most; each is the work of a block
  int64_t items = 0;          // parts of all samples
  int32_t samples_held = 0;   // at once, by a block
  int32_t blocks = 0;
  int32_t shared_bytes = 0;
};

// Whether x has 64 channels, there is room for the weights of all slots and for a sample, and its lines have a tap each
// or more: not by the batch.
bool FitsSample(const gpu::TapGemm& gemm);

// Of a `gemm` that fits.
SampleCut CutSamples(const gpu::TapGemm& gemm, int multiprocessors);

// What a sample takes of shared memory, a line of zeros included.
int64_t SampleBytes(const gpu::TapGemm& gemm);

}  // namespace knnconv::hopper
