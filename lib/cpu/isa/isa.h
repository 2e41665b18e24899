// The inner loops of the CPU backend, compiled once per instruction set and chosen once per process.
//
// Everything hot is behind this table. A file that is compiled for AVX may hold nothing that another file could also
// instantiate (standard containers, inline functions): the linker keeps one copy, and it could be the AVX one.
#pragma once

#include <cstdint>

#include "common/ffi.h"

namespace knnconv::cpu {

// A stretch of consecutive k-steps of one tile product.
struct Segment {
  const float* b;  // [length, tile_columns], contiguous
  int32_t a;       // first k-step in the A tile
  int32_t length;
};

// A row to gather: elements [source + begin, source + end) of an array, at [begin, end) of the gathered row; cut at the
// row's width.
inline constexpr int32_t kWholeRun = INT32_MAX;
struct Run {
  int64_t source;
  int32_t begin;
  int32_t end;
};

struct Isa {
  const char* name;

  // c[r, :] (+)= sum over segments s, k:  a[r * kTileDepthStride + s.a + k] * s.b[k, :]
  // rows in [1, tile_rows]; c is [rows, tile_columns] with row stride ldc; sums fp32, k ascending.
  void (*tile_product)(const float* a, const Segment* segments, int count, int rows, float* c, int64_t ldc,
                       bool accumulate);
  int tile_rows;
  int tile_columns;

  // c[r, :] (+)= sum over k < depth:  a[a_rows[k].source + r] * b[b_rows[k] * outer_columns + :]
  // rows in [1, outer_rows], columns in [1, outer_columns] of c, whose row stride is ldc; sums fp32, k ascending, formed
  // apart from c and added to it at the end. Every row of b has outer_columns elements.
  void (*outer_product)(const float* a, const Run* a_rows, const float* b, const int32_t* b_rows, int64_t depth,
                        int rows, int columns, float* c, int64_t ldc, bool accumulate);
  int outer_rows;
  int outer_columns;

  // dst[i * ldd + j] = float(base[runs[i].source + j]) where runs[i].begin <= j < runs[i].end, else 0; j < width.
  // By Dtype of base. Nothing outside a run is read; dst may be written up to the next multiple of 16 columns.
  void (*gather_runs[kDtypes])(const void* base, const Run* runs, int64_t count, int width, float* dst, int64_t ldd);
  // The same for fp32 base, rounded to the Dtype.
  void (*gather_runs_rounded[kDtypes])(const void* base, const Run* runs, int64_t count, int width, float* dst, int64_t ldd);

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

// The widest instruction set that this processor and the build share.
// The environment variable JAX_KNNCONV_CPU_ISA (avx512, avx2, plain) asks for a narrower one; read once.
const Isa& ActiveIsa();

}  // namespace knnconv::cpu
