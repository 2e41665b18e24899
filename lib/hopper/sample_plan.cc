#include "hopper/sample_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/device.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv;

constexpr int64_t kOtherBytes = 1024 + kSampleColumns * 4;  // to align the weights, and the bias
constexpr int64_t kBarrierBytes = 8;
// So that products of both have 31 bits.
constexpr int64_t kMostStrips = 1 << 20;
constexpr int32_t kMostParts = 1 << 10;

int64_t SharedBytes(const gpu::TapGemm& gemm, int64_t samples) {
  const int64_t barriers = (gemm.slots + 2 * samples) * kBarrierBytes;
  return kOtherBytes + gemm.slots * kSampleMatrixBytes + samples * SampleBytes(gemm) + barriers;
}

// Cycles of an H200, of which only ratios matter: of a block that computes `strips` of one sample.
double CyclesOf(const gpu::TapGemm& gemm, int64_t strips) {
  constexpr double kBytesOfCycle = 30, kStart = 1500;  // of loads
  constexpr double kTap = 170, kWait = 230;            // of a strip, and of strips that are computed at once
  const double waits = static_cast<double>(CeilDiv(strips, int64_t{kSampleWarpgroups})) * kWait;
  const double tap = static_cast<double>(strips) * kTap + waits;
  return kStart + static_cast<double>(SampleBytes(gemm)) / kBytesOfCycle + gemm.slots * tap;
}

}  // namespace

int64_t SampleBytes(const gpu::TapGemm& gemm) { return (gemm.source_rows + 1) * kSampleLineBytes; }

bool FitsSample(const gpu::TapGemm& gemm) {
  if (gemm.kind != gpu::Taps::kColumns || gemm.transposed || gemm.groups.count() != 1) return false;
  if (gemm.depth != kSampleChannels || gemm.columns > kSampleColumns || gemm.slots != gemm.table.columns) return false;
  const int64_t taps = gemm.nodes * gemm.slots, strips = CeilDiv(gemm.nodes, int64_t{kSampleRows});
  if (taps > INT32_MAX || strips > kMostStrips || gemm.batch > INT32_MAX / 2 / strips) return false;
  return taps >= gemm.source_rows && SharedBytes(gemm, 1) <= kMostBlockBytes;
}

SampleCut CutSamples(const gpu::TapGemm& gemm, int multiprocessors) {
  SampleCut cut;
  cut.strips = static_cast<int32_t>(CeilDiv(gemm.nodes, int64_t{kSampleRows}));
  double least = 0;
  for (int32_t parts = 1; parts <= std::min(cut.strips, kMostParts); ++parts) {
    const int64_t rounds = CeilDiv(gemm.batch * parts, int64_t{multiprocessors});
    const double cycles = static_cast<double>(rounds) * CyclesOf(gemm, CeilDiv(cut.strips, parts));
    if (cut.parts > 0 && cycles >= least) continue;
    cut.parts = parts;
    least = cycles;
  }
  cut.items = gemm.batch * cut.parts;
  cut.blocks = static_cast<int32_t>(std::min<int64_t>(cut.items, multiprocessors));
  const int64_t wanted = std::min<int64_t>(CeilDiv(cut.items, int64_t{cut.blocks}), kMostSamples);
  cut.samples_held = 1;
  while (cut.samples_held < wanted && SharedBytes(gemm, cut.samples_held + 1) <= kMostBlockBytes) ++cut.samples_held;
  cut.shared_bytes = static_cast<int32_t>(SharedBytes(gemm, cut.samples_held));
  return cut;
}

}  // namespace knnconv::hopper
