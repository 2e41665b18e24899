// How many rows and weight panels a task takes. Sums do not depend on it, so it may follow the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/operands.h"

namespace knnconv::cpu {

struct TaskPlan {
  int64_t rows;    // of a block, at most
  int64_t panels;  // of a task, at most

  // `rows` rows in all in each of `groups` groups, `panels` panels wide; blocks of at most max_rows rows.
  static TaskPlan Make(int64_t rows, int64_t groups, int64_t panels, int64_t threads, int64_t max_rows) {
    constexpr int64_t kMaxPanels = 16;  // 512 columns of sums beside the A tile in a 1 MB cache
    constexpr int64_t kMinRows = 28;    // fewer rows read the weights too often
    constexpr int64_t kTasksPerThread = 4;
    TaskPlan plan{max_rows, std::min(panels, kMaxPanels)};
    const int64_t wanted = threads > 1 ? threads * kTasksPerThread : 1;
    auto tasks = [&] { return groups * CeilDiv(rows, plan.rows) * CeilDiv(panels, plan.panels); };
    // Halving the panels doubles the gathers, halving the rows doubles the reads of weights: the larger share gives.
    while (tasks() < wanted && (plan.panels > 1 || plan.rows > kMinRows)) {
      if (plan.panels > 4 || plan.rows <= kMinRows) {
        plan.panels = CeilDiv(plan.panels, 2);
      } else {
        plan.rows = CeilDiv(plan.rows, 2);
      }
    }
    return plan;
  }
};

// Part `index` of `count` nearly equal parts of [0, size).
struct Range {
  int64_t begin, end;
  static Range Part(int64_t size, int64_t index, int64_t count) {
    return {size / count * index + std::min(size % count, index),
            size / count * (index + 1) + std::min(size % count, index + 1)};
  }
  int64_t size() const { return end - begin; }
};

}  // namespace knnconv::cpu
