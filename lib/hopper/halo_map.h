// How the copy engine sees images of few channels: a box is a tile's halo, or its pixels.
#pragma once

#include <cstdint>

#include "hopper/tensor_map.h"

namespace knnconv::hopper {

// Boxes of height and width pixels of [images, rows, columns, channels], each a line of `line_bytes`.
inline BoxMap ImageMap(gpu::Element type, const void* address, int64_t images, const int32_t (&size)[2],
                       int64_t channels, const int32_t (&box)[2], int line_bytes) {
  BoxMap map{type, address, 4, {}, {}, {static_cast<uint32_t>(line_bytes / 2), 1, 1, 1}, line_bytes};
  map.size[0] = static_cast<uint64_t>(channels);
  map.size[3] = static_cast<uint64_t>(images);
  uint64_t bytes = 2 * map.size[0];
  for (int i = 0; i < 2; ++i) {
    map.size[1 + i] = static_cast<uint64_t>(size[1 - i]);
    map.box[1 + i] = static_cast<uint32_t>(box[1 - i]);
    map.stride[i] = bytes;
    bytes *= map.size[1 + i];
  }
  map.stride[2] = bytes;
  return map;
}

}  // namespace knnconv::hopper
