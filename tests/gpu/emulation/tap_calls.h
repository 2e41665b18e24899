// Calls that the checks of forward's and dinput's rules ask about, and what they ask.
#pragma once

#include <vector>

#include "gpu/hub_sums.h"
#include "gpu/tap_choice.h"
#include "rules.h"

namespace knnconv::gpu::check {

// Forward of a square image, or dinput of the same call, "same" padding.
inline TapGemm Image(bool transposed, int batch, int size, int channels, int outputs, int kernel = 3, int stride = 1) {
  TapGemm gemm{};
  const int out = (size + stride - 1) / stride;
  gemm.kind = Taps::kWindow;
  gemm.transposed = gemm.window.transposed = transposed;
  gemm.source_type = gemm.compute_type = gemm.out_type = Element::kBF16;
  gemm.batch = batch;
  gemm.nodes = int64_t{transposed ? size : out} * (transposed ? size : out);
  gemm.source_rows = int64_t{transposed ? out : size} * (transposed ? out : size);
  gemm.depth = transposed ? outputs : channels;
  gemm.columns = transposed ? channels : outputs;
  gemm.slots = kernel * kernel;
  for (int d = 0; d < 2; ++d) {
    gemm.window.kernel[d] = kernel;
    gemm.window.stride[d] = stride;
    gemm.window.padding[d] = (kernel - 1) / 2;
    gemm.window.dilation[d] = 1;
    gemm.window.source_size[d] = transposed ? out : size;
    gemm.window.out_size[d] = transposed ? size : out;
  }
  return gemm;
}

// Forward over a table without slots.
inline TapGemm Columns(int batch, int sources, int rows, int neighbours, int channels, int outputs) {
  TapGemm gemm{};
  gemm.kind = Taps::kColumns;
  gemm.source_type = gemm.compute_type = gemm.out_type = Element::kBF16;
  gemm.batch = batch;
  gemm.nodes = rows;
  gemm.source_rows = sources;
  gemm.depth = channels;
  gemm.columns = outputs;
  gemm.slots = gemm.table.columns = neighbours;
  return gemm;
}

// dinput over a table.
inline TapGemm Sources(int batch, int sources, int rows, int slots, int channels, int outputs) {
  TapGemm gemm = Columns(batch, rows, sources, 0, outputs, channels);
  gemm.kind = Taps::kSources;
  gemm.transposed = true;
  gemm.slots = slots;
  gemm.table.taps = int64_t{rows} * slots;
  gemm.workspace_bytes = HubPartials(gemm, gemm.table.taps) * 4;
  return gemm;
}

inline Kernel Ask(const TapGemm& gemm, const Device& device, const TileChoice& wanted = {}) {
  TapDecision decision;
  return ChooseTapGemm(gemm, device, wanted, &decision).ok() ? KernelOf(decision) : kNone;
}

inline TileChoice Wanted(KernelFamily kernel) {
  TileChoice wanted;
  wanted.kernel = kernel;
  return wanted;
}

// Of an operand whose matrices are of some size, where groups have `sizes`.
inline GroupStrides Own(const std::vector<int64_t>& sizes, int64_t matrix) {
  GroupStrides strides;
  for (size_t i = sizes.size(); i-- > 0; matrix *= sizes[i]) strides.step[i] = sizes[i] == 1 ? 0 : matrix;
  return strides;
}

}  // namespace knnconv::gpu::check
