// How the copy engine sees the operands of a weight gradient on Hopper.
#pragma once

#include <cstdint>

#include "hopper/dweight_sizes.h"
#include "hopper/dweight_strips.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {

struct DweightMaps {
  CUtensorMap x, g;
};

// Copies of kStep pixels of `images` images, every one of them.
inline PixelMap AllPixels(gpu::Element type, const void* address, int64_t channels, const int32_t (&size)[2],
                          int64_t images) {
  PixelMap map = {};
  map.type = type;
  map.address = address;
  map.channels = channels;
  map.width = size[1];
  map.height = size[0];
  map.images = images;
  map.step[0] = map.step[1] = 1;
  map.pixels = kStep;
  return map;
}

// Pixels of x as the taps of slot 0 visit them; other slots add their offsets.
inline PixelMap PixelsOf(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, int64_t images) {
  PixelMap map = AllPixels(dweight.g_type, dweight.x, dweight.channels, taps.in_size, images);
  for (int d = 0; d < 2; ++d) {
    const int from = 1 - d;  // the map has w first
    const Corners corners = CornersOf(taps, from);
    map.lower[d] = corners.lower;
    map.upper[d] = corners.upper;
    map.step[d] = taps.stride[from];
  }
  return map;
}

inline PixelMap StripsOf(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  PixelMap map = PixelsOf(dweight, taps, dweight.batch);
  map.upper[0] = StripUpper(taps);
  map.pixels = StripLines(taps);
  return map;
}

// Pixels of g, with the zeros behind each line.
inline PixelMap PaddedCotangent(const gpu::Dweight& dweight, const gpu::DenseTaps& taps) {
  PixelMap map = AllPixels(dweight.g_type, dweight.g, dweight.columns, taps.out_size, dweight.batch);
  map.upper[0] = CotangentUpper(taps);
  return map;
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

// Boxes of kStep rows of g, which follow each other over all batch entries, where each of `matrices` has so many rows.
// Behind the last of a matrix come zeros, and not the next one's.
inline gpu::Status EncodeCotangent(const gpu::Dweight& dweight, int64_t rows, int64_t matrices, CUtensorMap* map) {
  BoxMap spec = {dweight.g_type, dweight.g, 3, {}, {}, {kBox, kStep, 1}};
  spec.size[0] = static_cast<uint64_t>(dweight.columns);
  spec.size[1] = static_cast<uint64_t>(rows);
  spec.size[2] = static_cast<uint64_t>(matrices);
  spec.stride[0] = 2 * spec.size[0];
  spec.stride[1] = spec.stride[0] * spec.size[1];
  return Encode(spec, map);
}

inline gpu::Status EncodeOperands(const gpu::Dweight& dweight, const gpu::NeighborTable& table, DweightMaps* maps) {
  const gpu::Element type = dweight.g_type;
  KNNCONV_GPU_RETURN_IF_ERROR(EncodeRows(type, dweight.x, dweight.batch, table.sources, dweight.channels, &maps->x));
  return EncodeRows(type, dweight.g, dweight.batch, table.outputs, dweight.columns, &maps->g);
}

// x is gathered.
inline gpu::Status EncodeGathered(const gpu::Dweight& dweight, const DweightGroups& groups, int64_t rows,
                                  DweightMaps* maps) {
  maps->x = {};
  return EncodeCotangent(dweight, rows, groups.results, &maps->g);
}

inline gpu::Status EncodeOperands(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const DweightGroups& groups,
                                  bool has_strips, DweightMaps* maps) {
  if (has_strips) {
    KNNCONV_GPU_RETURN_IF_ERROR(Encode(StripsOf(dweight, taps), &maps->x));
    return Encode(PaddedCotangent(dweight, taps), &maps->g);
  }
  const int64_t images = (groups.own_x ? groups.results : 1) * dweight.batch;
  KNNCONV_GPU_RETURN_IF_ERROR(Encode(PixelsOf(dweight, taps, images), &maps->x));
  return EncodeCotangent(dweight, Positions(dweight, taps, taps.out_size[1]), groups.own_g ? groups.results : 1,
                         &maps->g);
}

}  // namespace knnconv::hopper
