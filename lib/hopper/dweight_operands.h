// How the copy engine sees the operands of a weight gradient on Hopper, and which calls it can serve.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/dweight.h"
#include "hopper/dweight_strips.h"
#include "hopper/dweight_task.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {

inline constexpr int kLeastCorner = -128, kMostCorner = 127;  // of the copy engine's pixels

struct DweightMaps {
  CUtensorMap x, g;
};

// Pixels of x as the taps of slot 0 visit them; other slots add their offsets.
inline PixelMap PixelsOf(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  PixelMap map = {};
  map.type = dweight.g_type;
  map.address = dweight.x;
  map.channels = dweight.channels;
  map.width = taps.in_size[1];
  map.height = taps.in_size[0];
  map.images = dweight.batch;
  for (int d = 0; d < 2; ++d) {
    const int from = 1 - d;  // the map has w first
    map.lower[d] = -taps.padding[from];
    map.upper[d] = (taps.out_size[from] - 1) * taps.stride[from] - taps.padding[from] - (taps.in_size[from] - 1);
    map.step[d] = taps.stride[from];
  }
  map.pixels = kStep;
  return map;
}

inline PixelMap StripsOf(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  PixelMap map = PixelsOf(dweight, taps);
  map.upper[0] = StripPitch(taps) - taps.padding[1] - taps.in_size[1];
  map.pixels = StripLines(taps);
  return map;
}

// Pixels of g, with the zeros behind each line.
inline PixelMap PaddedCotangent(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  PixelMap map = {};
  map.type = dweight.g_type;
  map.address = dweight.g;
  map.channels = dweight.columns;
  map.width = taps.out_size[1];
  map.height = taps.out_size[0];
  map.images = dweight.batch;
  map.upper[0] = StripPitch(taps) - taps.out_size[1];
  map.step[0] = map.step[1] = 1;
  map.pixels = kStep;
  return map;
}

inline bool HasCornersInReach(const PixelMap& map) {
  for (int d = 0; d < 2; ++d) {
    if (std::min(map.lower[d], map.upper[d]) < kLeastCorner) return false;
    if (std::max(map.lower[d], map.upper[d]) > kMostCorner) return false;
  }
  return true;
}

inline int64_t Positions(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, int32_t pitch) {
  return dweight.batch * taps.out_size[0] * pitch;
}

inline bool HasShortNumbers(int64_t positions) { return positions <= INT32_MAX - 2 * kStep; }

inline bool IsInReach(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  constexpr int kMostStride = 8, kMostOffset = 255;  // of the copy engine
  const int32_t kernel[2] = {dweight.slots / taps.kernel_width, taps.kernel_width};
  for (int d = 0; d < 2; ++d) {
    if (taps.in_size[d] == 0 || taps.out_size[d] == 0) return false;
    if (taps.stride[d] > kMostStride || int64_t{kernel[d] - 1} * taps.dilation[d] > kMostOffset) return false;
  }
  return HasCornersInReach(PixelsOf(dweight, taps)) && HasShortNumbers(Positions(dweight, taps, taps.out_size[1]));
}

inline bool IsInReach(const gpu::Dweight&, const gpu::NeighborTable& table) {
  return table.sources > 0 && table.outputs > 0 && table.neighbours > 0;
}
inline bool IsInReach(const gpu::Dweight& dweight, const gpu::ColumnTaps& taps) {
  return IsInReach(dweight, taps.table);
}
inline bool IsInReach(const gpu::Dweight& dweight, const gpu::SlotTaps& taps) { return IsInReach(dweight, taps.table); }

// Whether strips can serve a dense convolution that is in reach.
inline bool HasStrips(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  return AreStripsDense(taps) && HasCornersInReach(StripsOf(dweight, taps)) &&
         HasCornersInReach(PaddedCotangent(dweight, taps)) &&
         HasShortNumbers(Positions(dweight, taps, StripPitch(taps)));
}

// Boxes of kStep batch entries of one row of [batch, rows, width].
inline gpu::Status EncodeRows(gpu::Element type, const void* address, int64_t batch, int64_t rows, int64_t width,
                              CUtensorMap* map) {
  BoxMap spec = {type, address, 3, {}, {}, {kBox, 1, kStep}};
  spec.size[0] = static_cast<uint64_t>(width);
  spec.size[1] = static_cast<uint64_t>(rows);
  spec.size[2] = static_cast<uint64_t>(batch);
  spec.stride[0] = 2 * spec.size[0];
  spec.stride[1] = spec.stride[0] * spec.size[1];
  return Encode(spec, map);
}

// Boxes of kStep rows of [rows, width].
inline gpu::Status EncodeRows(gpu::Element type, const void* address, int64_t rows, int64_t width, CUtensorMap* map) {
  BoxMap spec = {type, address, 2, {}, {}, {kBox, kStep}};
  spec.size[0] = static_cast<uint64_t>(width);
  spec.size[1] = static_cast<uint64_t>(rows);
  spec.stride[0] = 2 * spec.size[0];
  return Encode(spec, map);
}

inline gpu::Status EncodeOperands(const gpu::Dweight& dweight, const gpu::NeighborTable& table, DweightMaps* maps) {
  const gpu::Element type = dweight.g_type;
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(type, dweight.x, dweight.batch, table.sources, dweight.channels, &maps->x));
  return EncodeRows(type, dweight.g, dweight.batch, table.outputs, dweight.columns, &maps->g);
}

inline gpu::Status EncodeOperands(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, bool has_strips,
                                  DweightMaps* maps) {
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(has_strips ? StripsOf(dweight, taps) : PixelsOf(dweight, taps), &maps->x));
  if (has_strips) return Encode(PaddedCotangent(dweight, taps), &maps->g);
  return EncodeRows(dweight.g_type, dweight.g, Positions(dweight, taps, taps.out_size[1]), dweight.columns, &maps->g);
}

}  // namespace knnconv::hopper
