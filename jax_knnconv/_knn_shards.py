"""A table's derived orders where its rows are sharded: a shard's own taps out of the whole table's.

Shards hold a block of output rows each, but a source's taps, and a slot's, lie in rows of all shards. The orders are
therefore replicated, and each shard keeps the entries of its rows, in their order. That costs a pass over the whole
order in every call; a table that is built from a shard's rows inside shard_map has its own orders and no such cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv._partition import Shards, shard_index
from jax_knnconv._primitive import is_absent
from jax_knnconv._reading import INT32_MAX
from jax_knnconv._table_orders import HOLE


def of_shard(orders: Iterable[Any], *, rows: int, shards: Shards) -> tuple[Any, ...]:
    """Orders, three arrays each: offsets, output rows and what else a tap has; absent ones stay absent.

    `rows` is the number of the shard's own rows; the result counts rows from its first.

    Raises:
        ValueError: an order of 2**31 taps or more, which the pass does not count.
    """
    orders = tuple(orders)
    if not shards.axes.get("m"):
        return orders
    first = shard_index(shards.axes["m"]) * rows
    found: list[Any] = []
    for offsets, tap_rows, payload in zip(*(iter(orders),) * 3, strict=True):
        if is_absent(offsets):
            found += [offsets, tap_rows, payload]
            continue
        taps = tap_rows.shape[-1]
        if taps > INT32_MAX:
            raise ValueError(
                f"table: got {taps} taps with sharded rows, expected fewer than 2**31: build a table of each shard's "
                "rows inside shard_map"
            )
        length = -(-taps // jax.lax.axis_size(shards.axes["m"]))

        def keep(offsets: Any, tap_rows: Any, payload: Any, length: int = length) -> tuple[Any, ...]:
            return _keep(offsets, tap_rows, payload, first, rows, length)

        for _ in range(tap_rows.ndim - 1):
            keep = jax.vmap(keep)
        found += keep(offsets, tap_rows, payload)
    return tuple(found)


def _keep(offsets: Any, tap_rows: Any, payload: Any, first: Any, rows: int, length: int) -> tuple[Any, ...]:
    """One order's taps of the rows [first, first + rows), in `length` entries; the same keys."""
    ends = offsets[:, 0]
    position = jnp.arange(tap_rows.shape[0], dtype=jnp.int32)
    own = (tap_rows >= first) & (tap_rows < first + rows) & (position < ends[-1])
    count = jnp.cumsum(own, dtype=jnp.int32)
    before = jnp.concatenate([jnp.zeros((1,), jnp.int32), count])[ends]
    # Distinct places past the end for all others: a scatter of unique indices has one result.
    place = jnp.where(own, count - 1, length + position)
    blank = jnp.full((length,), HOLE, jnp.int32)
    kept = (blank.at[place].set(v, mode="drop", unique_indices=True) for v in (tap_rows - first, payload))
    return jnp.stack([before, jnp.zeros_like(before)], -1), *kept
