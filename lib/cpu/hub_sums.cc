#include "cpu/hub_sums.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "cpu/parallel.h"
#include "cpu/task_plan.h"

namespace knnconv::cpu {
namespace {

void AddTo(float* dst, const float* src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] += src[i];
}

void SumOneSpan(const Isa& isa, Source read, const char* base, int64_t stride, const int32_t* rows, int64_t count,
                int64_t n, float* dst) {
  float block[kTileDepth];
  auto sum_rows = isa.sum_rows[static_cast<int>(read)];
  sum_rows(base, stride, rows, std::min(count, kSumBlock), n, dst);
  for (int64_t t = kSumBlock; t < count; t += kSumBlock) {
    sum_rows(base, stride, rows + t, std::min(count - t, kSumBlock), n, block);
    AddTo(dst, block, n);
  }
}

}  // namespace

void SumTaps(const Isa& isa, Source read, const char* base, int64_t stride, const int32_t* rows, int64_t count,
             int64_t n, float* dst) {
  SumOneSpan(isa, read, base, stride, rows, std::min(count, kSumSpan), n, dst);
  float span[kTileDepth];
  for (int64_t t = kSumSpan; t < count; t += kSumSpan) {
    SumOneSpan(isa, read, base, stride, rows + t, std::min(count - t, kSumSpan), n, span);
    AddTo(dst, span, n);
  }
}

int64_t CellEnd(const int32_t* slots, int64_t begin, int64_t end) {
  int64_t i = begin + 1;
  for (const int64_t near = std::min(end, begin + 16); i < near; ++i) {
    if (slots[i] != slots[begin]) return i;
  }
  return i < end ? std::upper_bound(slots + i, slots + end, slots[begin]) - slots : i;
}

HubSums::HubSums(ffi::ThreadPool& pool, const Isa& isa, const KnnPass& pass, const SourceTaps& taps) {
  const Dims in = pass.source.dimensions();
  const int64_t batch = Product(in, pass.groups.rank(), in.size() - 2), sources = in[in.size() - 2];
  const int64_t depth = in[in.size() - 1], width = ByteWidth(pass.read);
  const int64_t nodes = pass.out.dimensions()[pass.out.dimensions().size() - 2];
  matrix_ = batch * depth;
  int64_t spans = 0;
  for (int64_t group = 0; group < pass.groups.count(); ++group) {
    const int32_t* offsets = GroupIndices(taps.offsets, pass.groups, group, 2 * (nodes + 1));
    const int32_t* rows = GroupIndices(taps.rows, pass.groups, group, taps.count);
    const int32_t* slots = GroupIndices(taps.slots, pass.groups, group, taps.count);
    for (int64_t n = 0; n < nodes; ++n) {
      const int64_t begin = SourceOffset(offsets, n), end = SourceOffset(offsets, n + 1);
      if (end - begin <= kSumSpan) continue;
      for (int64_t t = begin, next; t < end; t = next) {
        next = CellEnd(slots, t, end);
        if (next - t <= kSumSpan) continue;
        hubs_.push_back({rows + t, next - t, group, spans});
        spans += CeilDiv(next - t, kSumSpan);
      }
    }
  }
  if (hubs_.empty()) return;
  sums_.resize(spans * matrix_);

  std::vector<const Hub*> hub_of;
  for (const Hub& hub : hubs_) hub_of.insert(hub_of.end(), CeilDiv(hub.count, kSumSpan), &hub);
  ParallelFor(pool, spans * batch, [&](int64_t task) {
    const int64_t span = task / batch, b = task % batch;
    const Hub& hub = *hub_of[span];
    const int64_t first = (span - hub.first_span) * kSumSpan, count = std::min(kSumSpan, hub.count - first);
    const char* base =
        GroupData(pass.source, pass.groups, hub.group, batch * sources * depth, width) + b * sources * depth * width;
    float* dst = &sums_[span * matrix_ + b * depth];
    for (int64_t d = 0; d < depth; d += kTileDepth) {
      SumOneSpan(isa, pass.read, base + d * width, depth, hub.rows + first, count,
                 std::min<int64_t>(kTileDepth, depth - d), dst + d);
    }
  });
  for (const Hub& hub : hubs_) {
    float* total = &sums_[hub.first_span * matrix_];
    for (int64_t span = 1; span < CeilDiv(hub.count, kSumSpan); ++span) AddTo(total, total + span * matrix_, matrix_);
  }
}

const float* HubSums::Find(int64_t group, const int32_t* rows) const {
  auto before = [](const Hub& hub, const std::pair<int64_t, const int32_t*>& key) {
    return hub.group != key.first ? hub.group < key.first : std::less<const int32_t*>()(hub.rows, key.second);
  };
  const auto hub = std::lower_bound(hubs_.begin(), hubs_.end(), std::make_pair(group, rows), before);
  return &sums_[hub->first_span * matrix_];
}

}  // namespace knnconv::cpu
