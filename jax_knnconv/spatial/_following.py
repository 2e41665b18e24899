"""Places output rows beside their sources, in equal shares."""

from __future__ import annotations

import numpy as np

from jax_knnconv.spatial._bisection import equal_counts


def follow_sources(
    indices: np.ndarray, source_rows: np.ndarray, num_shards: int, shard_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Halve the output rows as the shards of the sources are numbered, each to the side that has more of its taps.

    Where a side is owed more rows than lean to it, those with taps on both sides fill it up. They lie at the border, so
    they stay near their sources. (If each row took its best shard that has room, the last would end up far away.)

    Args:
      indices: [M, K], holes as -1.
      source_rows: [N], the sharded row of each source.
      num_shards: P.
      shard_size: rows of a source shard.

    Returns:
      order, counts: the output rows shard after shard, each shard in the order of its sources; the sizes of the shards.
    """
    sharded = np.append(source_rows, -1)[indices]
    owners = np.where(sharded >= 0, sharded // shard_size, -1)
    counts = equal_counts(len(indices), num_shards)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    order = np.arange(len(indices))
    pending = [(0, num_shards)]  # shards [first, last) whose rows are still to be told apart
    while pending:
        first, last = pending.pop()
        rows = order[bounds[first] : bounds[last]]
        if last - first == 1:
            own = owners[rows] == first
            places = np.where(own, sharded[rows], 0).sum(axis=1) / np.maximum(own.sum(axis=1), 1)
            rows[:] = rows[np.argsort(places, kind="stable")]
            continue
        middle = (first + last) // 2
        left = ((owners[rows] >= first) & (owners[rows] < middle)).sum(axis=1)
        right = ((owners[rows] >= middle) & (owners[rows] < last)).sum(axis=1)
        lean = (right - left) / np.maximum(right + left, 1)
        rows[:] = rows[np.argsort(lean, kind="stable")]
        pending += [(first, middle), (middle, last)]
    return order, counts
