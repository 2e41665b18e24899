// The blocks of a KNN pass: which nodes, batch entries and columns a task computes, and where their data lies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/knn_tiles.h"
#include "cpu/parallel.h"
#include "cpu/task_plan.h"

namespace knnconv::cpu {

// Rows of a block at most.
inline constexpr int64_t kMaxKnnRows = 256;

struct KnnBlock {
  int64_t group;
  Range nodes, batches, panels;
  const char* source;       // the group's source; row (b, n) is at (b * sources + n) * row_bytes
  int64_t batch_bytes, row_bytes, sources;
  const float* packed;
  const float* bias;
  char* out;
  int64_t out_batch_bytes, out_row_bytes;
  Dtype out_dtype;

  int64_t rows() const { return nodes.size() * batches.size(); }
  const char* Batch(int64_t b) const { return source + (batches.begin + b) * batch_bytes; }
  // Stores the sums of all rows, of which row node * batches + b is (node, b). Nodes with used[node] = 0 get no bias.
  template <typename Sums>
  void Store(Sums& sums, const char* used) const {
    char* dst[kMaxKnnRows];
    for (int64_t r = 0; r < rows(); ++r) {
      dst[r] = out + (batches.begin + r % batches.size()) * out_batch_bytes +
               (nodes.begin + r / batches.size()) * out_row_bytes;
    }
    for (int64_t node = 0, next; node < nodes.size(); node = next) {
      for (next = node + 1; next < nodes.size() && used[next] == used[node];) ++next;
      sums.Store(node * batches.size(), (next - node) * batches.size(), used[node] ? bias : nullptr, out_dtype,
                 dst + node * batches.size());
    }
  }
};

// Calls run(block) for blocks that cover the pass, in parallel. `max_rows` rows a block at most, of at most
// `max_batches` batch entries where there are nodes enough.
template <typename Run>
void ForEachKnnBlock(ffi::ThreadPool& pool, const KnnPass& pass, int64_t max_rows, int64_t max_batches,
                     const Run& run) {
  const Dims in = pass.source.dimensions(), out = pass.out.dimensions();
  const int rank = pass.groups.rank();
  const int64_t batch = Product(in, rank, in.size() - 2), sources = in[in.size() - 2];
  const int64_t depth = pass.panels.row_elements();
  const int64_t nodes = out[out.size() - 2], columns = out[out.size() - 1];
  const Dtype out_dtype = ToDtype(pass.out.element_type());
  const int64_t out_row_bytes = columns * ByteWidth(out_dtype), row_bytes = depth * ByteWidth(pass.read);
  if (pass.out.element_count() == 0) return;

  const int64_t groups = pass.groups.count(), panels = pass.panels.count();
  const TaskPlan tasks = TaskPlan::Make(nodes * batch, groups, panels, pool.num_threads(), max_rows);
  const int64_t few = std::min({batch, max_batches, tasks.rows});
  const int64_t node_blocks = CeilDiv(nodes, std::max<int64_t>(1, tasks.rows / few));
  const int64_t batch_blocks = CeilDiv(batch, std::max(few, tasks.rows / CeilDiv(nodes, node_blocks)));
  const int64_t splits = CeilDiv(panels, tasks.panels);

  // Blocks of the same columns and nodes follow each other, so that they find weights and table in the cache.
  ParallelFor(pool, groups * splits * node_blocks * batch_blocks, [&](int64_t task) {
    KnnBlock block;
    block.batches = Range::Part(batch, task % batch_blocks, batch_blocks);
    block.nodes = Range::Part(nodes, task / batch_blocks % node_blocks, node_blocks);
    block.panels = Range::Part(panels, task / batch_blocks / node_blocks % splits, splits);
    block.group = task / batch_blocks / node_blocks / splits;
    block.source = GroupData(pass.source, pass.groups, block.group, batch * sources * depth, ByteWidth(pass.read));
    block.batch_bytes = sources * row_bytes;
    block.row_bytes = row_bytes;
    block.sources = sources;
    block.packed = pass.packed + pass.groups.IndexOf(block.group, pass.weight.dimensions()) * pass.panels.size();
    block.bias = pass.bias ? pass.bias + pass.groups.IndexOf(block.group, pass.bias_dims) * columns : nullptr;
    block.out_batch_bytes = nodes * out_row_bytes;
    block.out_row_bytes = out_row_bytes;
    block.out = static_cast<char*>(pass.out.untyped_data()) + block.group * batch * block.out_batch_bytes;
    block.out_dtype = out_dtype;
    run(block);
  });
}

// Asks for a source row that will be read soon: rows of a table lie anywhere in memory, so the processor cannot guess
// them. Beyond the first lines it can.
inline void PrefetchRow(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < std::min<int64_t>(bytes, 512); i += 64) __builtin_prefetch(row + i, 0, 2);
}

// A hole lies outside [0, bound).
inline bool IsHole(int32_t index, int64_t bound) {
  return static_cast<uint64_t>(static_cast<int64_t>(index)) >= static_cast<uint64_t>(bound);
}

}  // namespace knnconv::cpu
