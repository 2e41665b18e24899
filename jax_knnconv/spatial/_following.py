"""Places output rows beside their sources, in equal shares."""

from __future__ import annotations

import numpy as np

from jax_knnconv.spatial._bisection import equal_counts


def follow_sources(
    indices: np.ndarray, source_rows: np.ndarray, num_shards: int, shard_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Assign each of M output rows to the shard that owns most of its sources, while that shard has room.

    Rows that lose most by going elsewhere choose first. One for which no shard of its sources has room fills up a shard
    that has.

    Args:
      indices: [M, K], holes as -1.
      source_rows: [N], the sharded row of each source.
      num_shards: P.
      shard_size: rows of a source shard.

    Returns:
      order, counts: the output rows shard after shard, each shard in the order of its sources; the sizes of the shards.
    """
    num_rows = len(indices)
    taps = np.nonzero(indices >= 0)
    sharded = source_rows[indices[taps]]
    pairs, taps_of = np.unique(taps[0] * num_shards + sharded // shard_size, return_counts=True)
    rows, shards = np.divmod(pairs, num_shards)

    # The candidates of each row, best first, and how much better each is than the next.
    best_first = np.lexsort((shards, -taps_of, rows))
    rows, shards, taps_of = rows[best_first], shards[best_first], taps_of[best_first]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    has_next = np.append(rows[1:] == rows[:-1], False) if len(rows) else np.zeros(0, bool)
    margin = taps_of - np.where(has_next, np.append(taps_of[1:], 0)[: len(rows)], 0)

    demand = np.bincount(shards[rank == 0], minlength=num_shards)
    room = np.empty(num_shards, np.int64)
    room[np.argsort(-demand, kind="stable")] = equal_counts(num_rows, num_shards)
    counts = room.copy()
    chosen = np.full(num_rows, -1)
    for candidate in range(int(rank.max(initial=-1)) + 1):
        open_now = np.flatnonzero((rank == candidate) & (chosen[rows] < 0))
        wanted = open_now[np.lexsort((rows[open_now], -margin[open_now], shards[open_now]))]
        turn = np.arange(len(wanted)) - np.searchsorted(shards[wanted], shards[wanted])
        taken = wanted[turn < room[shards[wanted]]]
        chosen[rows[taken]] = shards[taken]
        room -= np.bincount(shards[taken], minlength=num_shards)
    chosen[chosen < 0] = np.repeat(np.arange(num_shards), room)

    own = sharded // shard_size == chosen[taps[0]]
    rows, sharded = taps[0][own], sharded[own]
    sums = np.bincount(rows, weights=sharded, minlength=num_rows)
    place = sums / np.maximum(np.bincount(rows, minlength=num_rows), 1)
    return np.lexsort((place, chosen)), counts
