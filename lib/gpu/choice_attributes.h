// The optional attributes by which a call forces its kernel (docs/handlers.md): `kernel`, `tile` and `ksplit`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "common/ffi.h"
#include "gpu/kernel_choice.h"

namespace knnconv::gpu {
namespace internal {

inline bool IsOneOf(int64_t value, std::initializer_list<int> sizes) {
  for (int size : sizes) {
    if (value == size) return true;
  }
  return value == -1;
}

// `row_sizes` are those of the tiles that exist.
inline ffi::Error ReadChoice(const ffi::Dictionary& attributes, std::initializer_list<int> row_sizes,
                             TileChoice* choice) {
  if (attributes.contains("kernel")) {
    const auto name = attributes.get<std::string_view>("kernel");
    if (name.has_error()) return name.error();
    KNNCONV_CHECK(FindKernelFamily(*name, &choice->kernel));
  }
  if (!attributes.contains("tile")) return ffi::Error::Success();
  const auto tile = attributes.get<ffi::Span<const int64_t>>("tile");
  if (tile.has_error()) return tile.error();
  KNNCONV_CHECK(tile->size() == 3);
  const int64_t rows = (*tile)[0], columns = (*tile)[1], staging = (*tile)[2];
  KNNCONV_CHECK(IsOneOf(rows, row_sizes) && IsOneOf(columns, {32, 64, 128}) && IsOneOf(staging, {0, 1, 2}));
  KNNCONV_CHECK(Allows(choice->kernel, KernelFamily::kPortable));
  choice->rows = static_cast<int>(rows);
  choice->columns = static_cast<int>(columns);
  choice->set_staging(static_cast<int>(staging));
  choice->kernel = KernelFamily::kPortable;
  return ffi::Error::Success();
}

}  // namespace internal

// Of forward and dinput.
inline ffi::Error ReadTileChoice(const ffi::Dictionary& attributes, TileChoice* choice) {
  return internal::ReadChoice(attributes, {16, 64, 128}, choice);
}

inline ffi::Error ReadDweightChoice(const ffi::Dictionary& attributes, DweightChoice* choice) {
  KNNCONV_RETURN_IF_ERROR(internal::ReadChoice(attributes, {32, 64, 128}, choice));
  if (!attributes.contains("ksplit")) return ffi::Error::Success();
  const auto slices = attributes.get<int64_t>("ksplit");
  if (slices.has_error()) return slices.error();
  KNNCONV_CHECK(*slices >= 1 && *slices <= INT32_MAX && Allows(choice->kernel, KernelFamily::kPortable));
  choice->slices = static_cast<int>(*slices);
  choice->kernel = KernelFamily::kPortable;
  return ffi::Error::Success();
}

}  // namespace knnconv::gpu
