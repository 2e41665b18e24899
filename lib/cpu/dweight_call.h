// The operands and results that dense and KNN weight gradients share: checked once, then handed out group by group.
//
// A group of the result has one member, or, where the result's group dimension is 1 and the operands' are larger, a
// member for each of those: groups of the operands, whose gradients are added.
#pragma once

#include "common/ffi.h"
#include "common/layout.h"
#include "cpu/operands.h"

namespace knnconv::cpu {

inline void* Offset(void* base, Dtype dtype, int64_t elements) {
  return static_cast<char*>(base) + elements * ByteWidth(dtype);
}

// One member's matrices.
struct DweightOperands {
  const void* x;
  const void* g;
};

// One group's.
struct DweightResults {
  void* dw;
  Dtype dw_dtype;
  void* db;  // nullptr: not asked for
  Dtype db_dtype;
};

struct DweightCall {
  Groups groups;  // of the operands
  ffi::AnyBuffer x, g, dw, db;
  float* partials;
  int64_t max_slices;
  bool has_bias;
  Source x_source;
  Dtype g_dtype;
  int64_t results;   // groups of the result
  int64_t members;   // of each
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
    KNNCONV_CHECK(IsAbsent(db) || (bd.size() == rank + 1 && bd[rank] == columns));
    for (size_t i = 0; i < rank; ++i) {
      KNNCONV_CHECK(wd[i] == groups.size(int(i)) || wd[i] == 1);
      KNNCONV_CHECK(IsAbsent(db) || bd[i] == wd[i]);
    }
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
    g_dtype = ToDtype(g.element_type());
    results = Product(wd, 0, rank);
    members = 1;
    for (size_t i = 0; i < rank; ++i) {
      if (IsSummed(int(i))) members *= groups.size(int(i));
    }
    batch = Product(xd, rank, xd.size() - row_rank - 1);
    slots = Product(wd, rank, wd.size() - 2);
    channels = wd[wd.size() - 2];
    columns = wd[wd.size() - 1];
  }

  // Whether products can be taken in pairs of bfloat16, two rows at a time.
  bool TakesPairs(const Isa& isa) const { return isa.outer_pair_product != nullptr && g_dtype == Dtype::kBF16; }

  // Whether members differ along a group dimension.
  bool IsSummed(int dimension) const { return dw.dimensions()[dimension] != groups.size(dimension); }

  // The operands' group that is a member of one of the result's.
  int64_t GroupOf(int64_t result, int64_t member) const {
    int64_t group = 0, stride = 1;
    for (int i = groups.rank() - 1; i >= 0; --i) {
      const int64_t size = groups.size(i);
      int64_t& number = IsSummed(i) ? member : result;
      group += number % size * stride;
      number /= size;
      stride *= size;
    }
    return group;
  }

  DweightOperands Operands(int64_t group) const {
    const auto matrix = [&](const ffi::AnyBuffer& buffer) {
      const Dims dims = buffer.dimensions();
      return GroupData(buffer, groups, group, Product(dims, groups.rank(), dims.size()),
                       ByteWidth(ToDtype(buffer.element_type())));
    };
    return {matrix(x), matrix(g)};
  }

  DweightResults Results(int64_t result) const {
    const Dtype dw_dtype = ToDtype(dw.element_type()), db_dtype = ToDtype(db.element_type());
    void* const weight = Offset(dw.untyped_data(), dw_dtype, result * slots * channels * columns);
    return {weight, dw_dtype, has_bias ? Offset(db.untyped_data(), db_dtype, result * columns) : nullptr, db_dtype};
  }
};

}  // namespace knnconv::cpu
