// The operands and results that dense and KNN weight gradients share, checked and turned into a Dweight.
#pragma once

#include "gpu/choice_attributes.h"
#include "gpu/dweight.h"
#include "gpu/handler.h"

namespace knnconv::gpu {

// `groups` are the operands'. x is [groups, batch, row_rank dimensions, C], g the same with O, dw [groups, slot_rank
// dimensions, C, O]; a result's group dimension of 1 sums the operands' groups.
inline ffi::Error MakeDweight(const Groups& groups, int row_rank, int slot_rank, const Buffer& x, const Buffer& g,
                              const Buffer& dw, const Buffer& db, const Buffer& partials, Dweight* dweight) {
  const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw.dimensions(), bd = db.dimensions();
  const int rank = groups.rank(), fixed = row_rank + 1;
  KNNCONV_CHECK(Is16Bit(g.element_type()) && IsFloat(dw.element_type()) && IsFloat(db.element_type()));
  KNNCONV_CHECK(x.element_type() == g.element_type() || x.element_type() == ffi::DataType::F32);
  KNNCONV_CHECK(static_cast<int>(wd.size()) == rank + slot_rank + 2);
  KNNCONV_CHECK(static_cast<int>(xd.size()) >= rank + fixed && gd.size() == xd.size());
  const int64_t batch = Product(xd, rank, xd.size() - fixed);
  const int64_t slots = Product(wd, rank, rank + slot_rank);
  const int64_t channels = wd[rank + slot_rank], columns = wd[rank + slot_rank + 1];
  KNNCONV_CHECK(batch == Product(gd, rank, gd.size() - fixed));
  KNNCONV_CHECK(xd[xd.size() - 1] == channels && gd[gd.size() - 1] == columns);
  // Kernels count batch entries, rows and columns of dw and groups in 32 bits.
  KNNCONV_CHECK(batch <= INT32_MAX && columns < INT32_MAX / 2 && groups.count() <= INT32_MAX);
  KNNCONV_CHECK(slots < INT32_MAX && channels < INT32_MAX / 4 && slots * channels < INT32_MAX / 2);
  // So are the rows of x and g, over all batch entries.
  const int64_t x_rows = Product(xd, rank, xd.size() - 1), g_rows = Product(gd, rank, gd.size() - 1);
  KNNCONV_CHECK(x_rows <= UINT32_MAX && g_rows <= UINT32_MAX);
  const bool has_bias = db.element_count() > 0;
  KNNCONV_CHECK(!has_bias || (static_cast<int>(bd.size()) == rank + 1 && bd[rank] == columns));
  KNNCONV_CHECK(partials.element_type() == ffi::DataType::F32);

  *dweight = {};
  dweight->x = x.untyped_data();
  dweight->g = g.untyped_data();
  dweight->dw = dw.untyped_data();
  dweight->db = has_bias ? db.untyped_data() : nullptr;
  dweight->partials = static_cast<float*>(partials.untyped_data());
  dweight->partial_elements = static_cast<int64_t>(partials.element_count());
  dweight->x_type = ToElement(x.element_type());
  dweight->g_type = ToElement(g.element_type());
  dweight->dw_type = ToElement(dw.element_type());
  dweight->db_type = ToElement(db.element_type());
  dweight->batch = batch;
  dweight->slots = static_cast<int32_t>(slots);
  dweight->channels = static_cast<int32_t>(channels);
  dweight->columns = static_cast<int32_t>(columns);
  dweight->shapes.groups.rank = dweight->shapes.members.rank = rank;
  for (int i = 0; i < rank; ++i) {
    KNNCONV_CHECK(wd[i] == groups.size(i) || wd[i] == 1);
    KNNCONV_CHECK(!has_bias || bd[i] == wd[i]);
    dweight->shapes.groups.size[i] = wd[i];
    dweight->shapes.members.size[i] = wd[i] == groups.size(i) ? 1 : groups.size(i);
  }
  dweight->x_groups = StridesOf(rank, xd, Product(xd, rank, xd.size()));
  dweight->g_groups = StridesOf(rank, gd, Product(gd, rank, gd.size()));
  return ffi::Error::Success();
}

}  // namespace knnconv::gpu
