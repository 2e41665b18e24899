// Checks of operands that forward and dinput share, and what a TapGemm takes from them.
#pragma once

#include "gpu/choice_attributes.h"
#include "gpu/handler.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

// Absent optional operands show another operand's group dimensions, which adds nothing.
inline Dims DimsOr(const Buffer& operand, Dims other) { return IsAbsent(operand) ? other : operand.dimensions(); }

// Fills everything but the taps from source (x or g), weight and out. `fixed` dimensions of source and out follow their
// batch dimensions; weight has `fixed - 1` dimensions of slots.
inline ffi::Error MakeTapGemm(const Buffer& source, const Buffer& weight, const Buffer& out, int fixed, bool transposed,
                              const Groups& groups, TapGemm* gemm) {
  const Dims in = source.dimensions(), w = weight.dimensions(), to = out.dimensions();
  const int rank = groups.rank();
  KNNCONV_CHECK(static_cast<int>(w.size()) == rank + fixed + 1);
  KNNCONV_CHECK(in.size() == to.size() && static_cast<int>(in.size()) >= rank + fixed);
  const size_t in_fixed = in.size() - fixed;
  const int64_t depth = w[w.size() - (transposed ? 1 : 2)], columns = w[w.size() - (transposed ? 2 : 1)];
  KNNCONV_CHECK(in[in.size() - 1] == depth && to[to.size() - 1] == columns);
  const int64_t batch = Product(in, rank, in_fixed);
  KNNCONV_CHECK(batch == Product(to, rank, in_fixed) && Product(to, 0, rank) == groups.count());
  KNNCONV_CHECK(IsFloat(source.element_type()) && Is16Bit(weight.element_type()) && IsFloat(out.element_type()));
  KNNCONV_CHECK(source.element_type() == weight.element_type() ||
                (!transposed && source.element_type() == ffi::DataType::F32));

  const int64_t slots = Product(w, rank, w.size() - 2), nodes = Product(to, in_fixed, to.size() - 1);
  const int64_t source_rows = Product(in, in_fixed, in.size() - 1);
  // Kernels count slots, channels, batch entries and the rows of one in 32 bits, and a round of layers' depth too.
  KNNCONV_CHECK(slots < INT32_MAX / 2 && depth < INT32_MAX / 64 && columns < INT32_MAX / 2);
  KNNCONV_CHECK(source_rows <= INT32_MAX && batch <= INT32_MAX);

  *gemm = {};
  gemm->source = source.untyped_data();
  gemm->weight = weight.untyped_data();
  gemm->out = out.untyped_data();
  gemm->source_type = ToElement(source.element_type());
  gemm->compute_type = ToElement(weight.element_type());
  gemm->out_type = ToElement(out.element_type());
  gemm->transposed = transposed;
  gemm->batch = batch;
  gemm->nodes = nodes;
  gemm->source_rows = source_rows;
  gemm->depth = static_cast<int32_t>(depth);
  gemm->columns = static_cast<int32_t>(columns);
  gemm->slots = static_cast<int32_t>(slots);
  gemm->groups = ToShape(groups);
  gemm->source_groups = StridesOf(rank, in, Product(in, rank, in.size()));
  gemm->weight_groups = StridesOf(rank, w, slots * depth * columns);
  return ffi::Error::Success();
}

// Runs a whole `gemm` as its call asks.
inline ffi::Error RunTapGemm(const LaunchSite& site, const TapGemm& gemm, const ffi::Dictionary& attributes) {
  TileChoice tile;
  KNNCONV_RETURN_IF_ERROR(ReadTileChoice(attributes, &tile));
  return ToError(RunTapGemm(site, gemm, tile));
}

// The bias [groups..., columns], or an absent one.
inline ffi::Error SetBias(const Buffer& bias, TapGemm* gemm) {
  if (IsAbsent(bias)) return ffi::Error::Success();
  const Dims dims = bias.dimensions();
  const int rank = gemm->groups.rank;
  KNNCONV_CHECK(bias.element_type() == ffi::DataType::F32);
  KNNCONV_CHECK(static_cast<int>(dims.size()) == rank + 1 && dims[rank] == gemm->columns);
  gemm->bias = static_cast<const float*>(bias.untyped_data());
  gemm->bias_groups = StridesOf(rank, dims, gemm->columns);
  return ffi::Error::Success();
}

}  // namespace knnconv::gpu
