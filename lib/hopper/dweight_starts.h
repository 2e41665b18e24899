// Where the members of each list begin in the line of all steps, for tables with slots that are gathered: how many taps
// a slot has is known on the device alone.
#pragma once

#include "gpu/launch.h"
#include "hopper/dweight_task.h"

namespace knnconv::hopper {

#if defined(KNNCONV_KERNELS)
// A slot's taps in the order of the table that a member of a result reads: the table's number, and which they are.
struct MemberTaps {
  int32_t matrix, first, count;
};

// Of a result whose members' rows of tables begin with `first_row`.
KNNCONV_DEVICE MemberTaps TapsOf(const DweightTask& task, int32_t first_row, int32_t member, int32_t slot) {
  const int32_t matrix = (first_row + member * task.groups.table_step) / task.table.outputs;
  const int32_t* const offset = task.slot_offsets + 2 * (int64_t{matrix} * (task.table.slot_count + 1) + slot);
  const int32_t first = gpu::ReadOnly(offset);
  return {matrix, first, gpu::ReadOnly(offset + 2) - first};
}
#endif

// Fills task.starts, and schedule.offsets alike for lists.
gpu::Status RunDweightStarts(const gpu::LaunchSite& site, const DweightTask& task);

}  // namespace knnconv::hopper
