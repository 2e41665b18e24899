// The inner loops of the CPU backend, compiled once per instruction set and chosen once per process.
//
// Everything hot is behind this table. A file that is compiled for AVX may hold nothing that another file could also
// instantiate (standard containers, inline functions): the linker keeps one copy, and it could be the AVX one.
#pragma once

#include <cstdint>

#include "common/ffi.h"

namespace knnconv::cpu {

// A stretch of consecutive k-steps of one tile.
struct Segment {
  const float* b;  // [length, columns], contiguous
  int32_t a;       // first k-step in the A tile
  int32_t length;
};

// A row to gather: elements [source + begin, source + end) of an array, at [begin, end) of the gathered row; cut at the
// row's width.
inline constexpr int32_t kWholeRun = INT32_MAX;
struct RowRun {
  int64_t source;
  int32_t begin;
  int32_t end;
};

// How source elements become fp32: converted, or (fp32 source, 16-bit compute) rounded to the compute type on the way.
enum class Source : int { kF32 = 0, kF16 = 1, kBF16 = 2, kF32AsF16 = 3, kF32AsBF16 = 4 };
inline constexpr int kSources = 5;

struct Isa {
  const char* name;

  // c[r][n] (+)= sum over segments s, k:  a[r * kTileDepthStride + s.a + k] * s.b[k * columns + n]
  // rows in [1, tile_rows]; columns 16 or 32; sums fp32, one chain of k ascending an element.
  void (*tile_product)(const float* a, const Segment* segments, int count, int rows, int columns, float* const* c,
                       int64_t c_offset, bool accumulate);
  // The same on pairs of bfloat16: an element of a or b is two consecutive k-steps, the first in the low half, both
  // multiplied and added to the fp32 sum, the second first. Null where the processor has no such instruction.
  void (*pair_product)(const float* a, const Segment* segments, int count, int rows, int columns, float* const* c,
                       int64_t c_offset, bool accumulate);
  int tile_rows;

  // c[r * ldc + n] (+)= sum over taps t, k < depth:  sources[t * source_stride + r][k] * weights[t][k * columns + n]
  // rows in [1, tile_rows]; columns 16 or 32; the same sums as tile_product's, of rows of float that need no gathering.
  void (*in_place_product)(const void* const* sources, int64_t source_stride, const float* const* weights,
                           int64_t taps, int rows, int64_t depth, int columns, float* c, int64_t ldc,
                           bool accumulate);
  // The same on pairs of bfloat16, as pair_product; null with it.
  void (*in_place_pair_product)(const void* const* sources, int64_t source_stride, const float* const* weights,
                                int64_t taps, int rows, int64_t depth, int columns, float* c, int64_t ldc,
                                bool accumulate);

  // sums[r, n, l] (+)= sum over taps t, k = l mod lanes:  float(sources[t * source_stride + r][k]) * weights[t][n, k]
  // For few columns, by Source. rows >= 1; columns in [1, kDotColumns]; k < depth; weights are [columns, depth rounded
  // up to kDotLanes]; sums are [rows, kDotColumns, kDotLanes]; one chain of taps and k ascending a lane.
  void (*dot_product[kSources])(const void* const* sources, int64_t source_stride, const float* const* weights,
                                int64_t taps, int rows, int64_t depth, int columns, float* sums, bool accumulate);
  // dst[r, n] = sum over lanes of sums[r, n] for n < columns, in a fixed tree; dst is [rows, kDotColumns].
  void (*fold_lanes)(const float* sums, int64_t rows, int columns, float* dst);

  // c[r, :] (+)= sum over k < depth:  a[a_rows[k].source + r] * b[b_rows[k] * outer_columns + :]
  // rows in [1, outer_rows], columns in [1, outer_columns] of c, whose row stride is ldc; sums fp32, k ascending,
  // formed apart from c and added to it at the end. Every row of b has outer_columns elements.
  void (*outer_product)(const float* a, const RowRun* a_rows, const float* b, const int32_t* b_rows, int64_t depth,
                        int rows, int columns, float* c, int64_t ldc, bool accumulate);
  // The same on pairs of bfloat16, as pair_product; null with it.
  void (*outer_pair_product)(const float* a, const RowRun* a_rows, const float* b, const int32_t* b_rows, int64_t depth,
                             int rows, int columns, float* c, int64_t ldc, bool accumulate);
  int outer_rows;
  int outer_columns;

  // dst[i * ldd + j] = float(base[runs[i].source + j]) where runs[i].begin <= j < runs[i].end, else 0; j < width.
  // By Source. Nothing outside a run is read; dst may be written up to the next multiple of 16 columns.
  void (*gather_runs[kSources])(const void* base, const RowRun* runs, int64_t count, int width, float* dst,
                                int64_t ldd);
  // Pairs of such rows: element j of dst's row i is j of runs[2 * i] in the low half and j of runs[2 * i + 1] in the
  // high half, as bfloat16. Sources that are or become bfloat16; null with pair_product.
  void (*gather_pairs[kSources])(const void* base, const RowRun* runs, int64_t count, int width, float* dst,
                                 int64_t ldd);

  // dst[r * kTileDepthStride + i] = float(rows[r][begin + i]) for i < n, by Source; a null row gives zeros.
  // n <= kTileDepth; may write zeros from n to the next multiple of 16.
  void (*gather[kSources])(const void* const* rows, int64_t count, int64_t begin, int64_t n, float* dst);
  // The same for rows of bfloat16, copied as pairs: dst is taken for elements of 16 bits, and begin is even.
  // n <= 2 * kTileDepth; writes zeros from n to the next multiple of 32. Null with pair_product.
  void (*gather_padded_pairs)(const void* const* rows, int64_t count, int64_t begin, int64_t n, float* dst);
  // dst[i] = sum over t < count of float(base[rows[t] * stride + i]) for i < n, t ascending; stride in elements.
  void (*sum_rows[kSources])(const void* base, int64_t stride, const int32_t* rows, int64_t count, int64_t n,
                             float* dst);
  // dst[r][i] = round_to_dtype(src[r * stride + i] + bias[i]) for i < n, by Dtype of dst; a null bias is zero.
  void (*store_biased[kDtypes])(const float* src, int64_t stride, int64_t rows, const float* bias, int64_t n,
                                void* const* dst);

  // dst[i] = float(src[i]), by Dtype of src.
  void (*load[kDtypes])(const void* src, int64_t n, float* dst);
  // dst[i] = float(round_to_dtype(src[i])) for fp32 src, by Dtype rounded to; round to nearest even.
  void (*load_rounded[kDtypes])(const float* src, int64_t n, float* dst);
  // dst[i] = round_to_dtype(src[i]), by Dtype of dst; round to nearest even.
  void (*store[kDtypes])(const float* src, int64_t n, void* dst);
};

// k-steps that one A tile holds a row; the row stride adds 16 so that rows do not share a cache set.
inline constexpr int kTileDepth = 256;
inline constexpr int kTileDepthStride = kTileDepth + 16;
// No instruction set's tile has more rows.
inline constexpr int kMaxTileRows = 14;
// Columns of a weight panel; the last panel of a matrix may be half as wide.
inline constexpr int kPanelColumns = 32;
// The most lanes of an element of dot_product, and the most columns it takes.
inline constexpr int kDotLanes = 16;
inline constexpr int kDotColumns = 8;

// The widest instruction set that this processor and the build share.
// The environment variable JAX_KNNCONV_CPU_ISA (avx512bf16, avx512, avx2, plain) asks for a narrower one; read once.
const Isa& ActiveIsa();

}  // namespace knnconv::cpu
