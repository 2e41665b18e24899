// The operands and results that dense and KNN weight gradients share: checked once, then handed out group by group.
#pragma once

#include "common/ffi.h"
#include "common/layout.h"
#include "cpu/operands.h"

namespace knnconv::cpu {

inline void* Offset(void* base, Dtype dtype, int64_t elements) {
  return static_cast<char*>(base) + elements * ByteWidth(dtype);
}

// One group's matrices.
struct DweightOperands {
  const void* x;
  Source x_source;
  const void* g;
  Dtype g_dtype;
  void* dw;
  Dtype dw_dtype;
  void* db;  // nullptr: not asked for
  Dtype db_dtype;
};

struct DweightCall {
  Groups groups;
  ffi::AnyBuffer x, g, dw, db;
  float* partials;
  int64_t max_slices;
  bool has_bias;
  Source x_source;
  int64_t batch;     // the product of x's and g's batch dimensions
  int64_t slots;     // V, or F_H * F_W
  int64_t channels;  // C
  int64_t columns;   // O

  // x is [groups, batch, row_rank dimensions, C], g the same with O, dw [groups, slot_rank dimensions, C, O].
  static ffi::Error Check(const Groups& groups, size_t row_rank, size_t slot_rank, ffi::AnyBuffer x, ffi::AnyBuffer g,
                          ffi::AnyBuffer dw, ffi::AnyBuffer db, ffi::AnyBuffer partials) {
    const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw.dimensions(), bd = db.dimensions();
    const Dims pd = partials.dimensions();
    const size_t rank = groups.rank(), batch_end = xd.size() - row_rank - 1;
    Source x_source;
    KNNCONV_RETURN_IF_ERROR(ReadAs(x.element_type(), g.element_type(), &x_source));
    KNNCONV_CHECK(IsFloat(dw.element_type()) && IsFloat(db.element_type()));
    KNNCONV_CHECK(wd.size() == rank + slot_rank + 2);
    KNNCONV_CHECK(xd.size() >= rank + row_rank + 1 && gd.size() == xd.size());
    KNNCONV_CHECK(Product(xd, rank, batch_end) == Product(gd, rank, batch_end));
    const int64_t channels = wd[rank + slot_rank], columns = wd[rank + slot_rank + 1];
    KNNCONV_CHECK(xd[xd.size() - 1] == channels && gd[gd.size() - 1] == columns);
    KNNCONV_CHECK(Product(wd, 0, rank) == groups.count());
    KNNCONV_CHECK(IsAbsent(db) || (bd.size() == rank + 1 && bd[rank] == columns));
    KNNCONV_CHECK(IsAbsent(db) || Product(bd, 0, rank) == groups.count());
    KNNCONV_CHECK(partials.element_type() == ffi::DataType::F32 && pd.size() >= 1);
    KNNCONV_CHECK(Product(pd, 1, pd.size()) == Product(wd, rank, wd.size()) + columns);
    return ffi::Error::Success();
  }

  // After Check.
  DweightCall(const Groups& groups, size_t row_rank, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::AnyBuffer dw,
              ffi::AnyBuffer db, ffi::AnyBuffer partials)
      : groups(groups), x(x), g(g), dw(dw), db(db), partials(static_cast<float*>(partials.untyped_data())) {
    const Dims xd = x.dimensions(), wd = dw.dimensions();
    const size_t rank = groups.rank();
    max_slices = partials.dimensions()[0];
    has_bias = db.element_count() > 0;
    (void)ReadAs(x.element_type(), g.element_type(), &x_source);
    batch = Product(xd, rank, xd.size() - row_rank - 1);
    slots = Product(wd, rank, wd.size() - 2);
    channels = wd[wd.size() - 2];
    columns = wd[wd.size() - 1];
  }

  DweightOperands Operands(int64_t group) const {
    const auto matrix = [&](const ffi::AnyBuffer& buffer) -> void* {
      const Dims dims = buffer.dimensions();
      return GroupData(buffer, groups, group, Product(dims, groups.rank(), dims.size()),
                       ByteWidth(ToDtype(buffer.element_type())));
    };
    return {matrix(x), x_source, matrix(g), ToDtype(g.element_type()), matrix(dw), ToDtype(dw.element_type()),
            has_bias ? matrix(db) : nullptr, ToDtype(db.element_type())};
  }
};

}  // namespace knnconv::cpu
