#include "cpu/knn_dweight.h"

#include "cpu/dweight.h"
#include "cpu/dweight_pairs.h"
#include "cpu/dweight_taps.h"
#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {

// One group's table. Rows are [b, m].
struct KnnTable {
  int64_t sources, outputs, neighbours, slot_count, channels;
  const int32_t* indices;  // [outputs, neighbours]
  const int32_t* slots;    // the same, or nullptr: the slot is the column
  bool zero_empty_rows;

  bool IsSource(int32_t index) const { return uint64_t(int64_t(index)) < uint64_t(sources); }
  bool IsSlot(int32_t slot) const { return uint64_t(int64_t(slot)) < uint64_t(slot_count); }

  // Element offset of a source row in x.
  int64_t Element(int64_t b, int32_t index) const { return (b * sources + index) * channels; }

  bool IsEmpty(int64_t m) const {
    for (int64_t k = m * neighbours; k < (m + 1) * neighbours; ++k) {
      if (IsSource(indices[k]) && (slots == nullptr || IsSlot(slots[k]))) return false;
    }
    return true;
  }

  // Calls piece(b, first m, end m, row of the first m) for each batch entry's part of [begin, end).
  template <typename Piece>
  void Pieces(int64_t begin, int64_t end, const Piece& piece) const {
    for (int64_t row = begin; row < end;) {
      const int64_t b = row / outputs, m = row % outputs;
      const int64_t m_end = std::min(outputs, m + end - row);
      piece(b, m, m_end, row);
      row += m_end - m;
    }
  }

  int CountedRows(int64_t begin, int64_t end, int32_t* rows) const {
    int count = 0;
    Pieces(begin, end, [&](int64_t, int64_t m, int64_t m_end, int64_t row) {
      for (; m < m_end; ++m, ++row) {
        if (!zero_empty_rows || !IsEmpty(m)) rows[count++] = int32_t(row - begin);
      }
    });
    return count;
  }
};

// A table without slots: slot v's tap of row m is indices[m, v].
struct ColumnTaps {
  static constexpr bool kHasRuns = true;

  KnnTable table;

  void Start(int64_t) {}

  template <typename Push>
  void Visit(int64_t slot, int64_t begin, int64_t end, const Push& push) const {
    table.Pieces(begin, end, [&](int64_t b, int64_t m, int64_t m_end, int64_t row) {
      const int32_t* index = table.indices + m * table.neighbours + slot;
      for (; m < m_end; ++m, ++row, index += table.neighbours) {
        if (table.IsSource(*index)) push(table.Element(b, *index), row - begin);
      }
    });
  }

  void Runs(int64_t slot, int64_t begin, int64_t end, RowRun* runs) const {
    const int32_t channels = int32_t(table.channels);
    table.Pieces(begin, end, [&](int64_t b, int64_t m, int64_t m_end, int64_t row) {
      const int32_t* index = table.indices + m * table.neighbours + slot;
      for (RowRun* run = runs + (row - begin); m < m_end; ++m, ++run, index += table.neighbours) {
        *run = table.IsSource(*index) ? RowRun{table.Element(b, *index), 0, channels} : RowRun{};
      }
    });
  }

  int CountedRows(int64_t begin, int64_t end, int32_t* rows) const { return table.CountedRows(begin, end, rows); }
};

// A table with slots: the taps of slot v are entries [offset(v), offset(v + 1)) of the slot order, in rows' order.
class SlotTaps {
 public:
  static constexpr bool kHasRuns = false;

  SlotTaps(const KnnTable& table, const uint32_t* offsets, const int32_t* rows, const int32_t* sources, int64_t entries)
      : table_(table), offsets_(offsets), rows_(rows), sources_(sources), entries_(entries) {}

  void Start(int64_t) { std::fill(batch_, batch_ + kBandSlots, -1); }

  template <typename Push>
  void Visit(int64_t slot, int64_t begin, int64_t end, const Push& push) {
    const int64_t last = Entry(slot + 1);
    int64_t& cursor = cursors_[slot % kBandSlots];
    int64_t& batch = batch_[slot % kBandSlots];
    table_.Pieces(begin, end, [&](int64_t b, int64_t m, int64_t m_end, int64_t row) {
      if (batch != b) {  // from the slot's start, or from the middle of its rows where a slice starts
        batch = b;
        cursor = std::lower_bound(rows_ + Entry(slot), rows_ + last, int32_t(m)) - rows_;
      }
      for (; cursor < last && rows_[cursor] < m_end; ++cursor) {
        if (table_.IsSource(sources_[cursor])) {
          push(table_.Element(b, sources_[cursor]), row - begin + rows_[cursor] - m);
        }
      }
    });
  }

  int CountedRows(int64_t begin, int64_t end, int32_t* rows) const { return table_.CountedRows(begin, end, rows); }

 private:
  // 64 bits in two words, low word first.
  int64_t Entry(int64_t slot) const {
    return std::min(int64_t(uint64_t(offsets_[2 * slot + 1]) << 32 | offsets_[2 * slot]), entries_);
  }

  KnnTable table_;
  const uint32_t* offsets_;
  const int32_t* rows_;
  const int32_t* sources_;
  int64_t entries_;
  // For each slot of the band (their numbers differ modulo kBandSlots): the next entry, and the batch entry it is for.
  int64_t cursors_[kBandSlots];
  int64_t batch_[kBandSlots];
};

}  // namespace

ffi::Error RunKnnDweight(ffi::ThreadPool& pool, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::AnyBuffer indices,
                         ffi::AnyBuffer slots, ffi::AnyBuffer slot_offsets, ffi::AnyBuffer slot_rows,
                         ffi::AnyBuffer slot_sources, ffi::AnyBuffer dw, ffi::AnyBuffer db, ffi::AnyBuffer partials,
                         bool zero_empty_rows) {
  const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw.dimensions(), id = indices.dimensions();
  const Dims od = slot_offsets.dimensions(), rd = slot_rows.dimensions(), sd = slot_sources.dimensions();
  KNNCONV_CHECK(wd.size() >= 3);
  const int rank = int(wd.size()) - 3;
  const size_t row_dim = xd.size() - 2;
  KNNCONV_CHECK(xd.size() >= wd.size() - 1 && gd.size() == xd.size() && int(id.size()) == rank + 2);
  const bool has_slots = slots.dimensions().size() == id.size();
  Groups groups;
  if (has_slots) {
    KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {xd, gd, wd, id, slots.dimensions(), od, rd, sd}, &groups));
    KNNCONV_CHECK(slots.dimensions()[rank] == id[rank] && slots.dimensions()[rank + 1] == id[rank + 1]);
    KNNCONV_CHECK(int(od.size()) == rank + 2 && od[rank] == wd[rank] + 1 && od[rank + 1] == 2);
    KNNCONV_CHECK(int(rd.size()) == rank + 1 && int(sd.size()) == rank + 1 && rd[rank] == sd[rank]);
    for (const ffi::AnyBuffer* operand : {&slots, &slot_offsets, &slot_rows, &slot_sources}) {
      KNNCONV_CHECK(operand->element_type() == ffi::DataType::S32);
    }
  } else {
    KNNCONV_RETURN_IF_ERROR(Groups::Make(rank, {xd, gd, wd, id}, &groups));
    KNNCONV_CHECK(slots.element_count() == 0 && wd[rank] == id[rank + 1]);
  }
  KNNCONV_CHECK(indices.element_type() == ffi::DataType::S32 && gd[row_dim] == id[rank]);
  KNNCONV_RETURN_IF_ERROR(DweightCall::Check(groups, 1, 1, x, g, dw, db, partials));
  const DweightCall call(groups, 1, x, g, dw, db, partials);

  const auto words = [&](ffi::AnyBuffer buffer, int64_t group) {
    const Dims dims = buffer.dimensions();
    return static_cast<const int32_t*>(buffer.untyped_data()) +
           groups.IndexOf(group, dims) * Product(dims, rank, dims.size());
  };
  const auto table_of = [&](int64_t group) {
    return KnnTable{xd[row_dim], id[rank], id[rank + 1], call.slots, call.channels, words(indices, group),
                    has_slots ? words(slots, group) : nullptr, zero_empty_rows};
  };
  const int64_t rows = call.batch * id[rank];
  const double taps_per_row_and_slot = has_slots && call.slots > 0 ? double(id[rank + 1]) / double(call.slots) : 1;
  // Rows that lack the slot would leave pairs half empty.
  const bool pairs = !has_slots && call.TakesPairs(ActiveIsa());
  const auto plan = DweightPlan::Make(call, rows, taps_per_row_and_slot, pairs);
  if (has_slots) {
    RunDweight<TapForm>(pool, plan, call, [&](int64_t group) {
      return SlotTaps(table_of(group), reinterpret_cast<const uint32_t*>(words(slot_offsets, group)),
                      words(slot_rows, group), words(slot_sources, group), rd[rank]);
    });
  } else {
    const auto taps_of = [&](int64_t group) { return ColumnTaps{table_of(group)}; };
    if (pairs) {
      RunDweight<PairForm>(pool, plan, call, taps_of);
    } else {
      RunDweight<TapForm>(pool, plan, call, taps_of);
    }
  }
  return ffi::Error::Success();
}

namespace {

ffi::Error RunHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::AnyBuffer indices,
                      ffi::AnyBuffer slots, ffi::AnyBuffer slot_offsets, ffi::AnyBuffer slot_rows,
                      ffi::AnyBuffer slot_sources, ffi::Result<ffi::AnyBuffer> dw, ffi::Result<ffi::AnyBuffer> db,
                      ffi::Result<ffi::AnyBuffer> partials, int64_t zero_empty_rows) {
  return RunKnnDweight(pool, x, g, indices, slots, slot_offsets, slot_rows, slot_sources, *dw, *db, *partials,
                       zero_empty_rows != 0);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(KnnDweight, RunHandler,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("zero_empty_rows"));

}  // namespace knnconv::cpu
