"""From a table's operands to chunks of taps (`taps`), for all groups at once.

A table that a jitted function closes over is a constant to XLA, which would sort it while compiling, a hundred times
slower than the compiled program does: barriers keep it from that.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv._xla.groups import over_groups
from jax_knnconv._xla.taps import Chunks, chunk_length, column_chunks, make_chunks


class Plan(NamedTuple):
    """The chunks of every group, and how many of them to go through.

    The number is the longest group's and no group's own, and so are the steps of each chunk's scan: vmap would turn
    loops of different lengths into selections on whole accumulators. Chunks past a group's own hold no tap.
    """

    chunks: Chunks  # [groups..., ...]
    num_chunks: jax.Array  # []


def row_plan(indices: jax.Array, slots: jax.Array, rank: int, num_inputs: int, num_slots: int) -> Plan | None:
    """Taps sorted by (slot, row), for forward; None where there are none.

    indices, slots: [groups..., M, K] with `rank` group dimensions.
    """
    num_outputs, columns = indices.shape[rank:]
    if 0 in (num_outputs, columns, num_inputs, num_slots):
        return None
    length = chunk_length(num_outputs * columns, num_slots, max(num_inputs, num_outputs))

    def one(indices: jax.Array, slots: jax.Array) -> Chunks:
        indices, slots = lax.optimization_barrier((indices, slots))
        taps = is_tap(indices, slots, num_inputs, num_slots)
        starts, order = _sort_by_slot(jnp.where(taps, slots, num_slots).reshape(-1), num_slots)
        return make_chunks(starts, order // columns, indices.reshape(-1)[order], length)

    return _share_counts(over_groups(one, rank, indices, slots))


def source_plan(
    offsets: jax.Array, rows: jax.Array, slots: jax.Array, rank: int, num_outputs: int, num_slots: int
) -> Plan | None:
    """Taps sorted by (slot, source), for dinput; None where there are none.

    offsets [groups..., N + 1, 2], rows and slots [groups..., T]: the table's source order.
    """
    num_inputs, num_taps = offsets.shape[-2] - 1, rows.shape[-1]
    if 0 in (num_inputs, num_taps, num_outputs, num_slots):
        return None
    length = chunk_length(num_taps, num_slots, max(num_inputs, num_outputs))

    def one(offsets: jax.Array, rows: jax.Array, slots: jax.Array) -> Chunks:
        offsets, rows, slots = lax.optimization_barrier((offsets[:, 0], rows, slots))
        sources = tap_sources(offsets, num_taps)
        if num_slots == 1:
            return make_chunks(jnp.stack([offsets[0], offsets[-1]]), sources, rows, length)
        taps = jnp.arange(num_taps, dtype=jnp.int32)
        # The sort is stable: equal slots keep the order by (source, row).
        starts, order = _sort_by_slot(jnp.where(taps < offsets[-1], slots, num_slots), num_slots)
        return make_chunks(starts, sources[order], rows[order], length)

    return _share_counts(over_groups(one, rank, offsets, rows, slots))


def slot_plan(
    offsets: jax.Array, rows: jax.Array, sources: jax.Array, rank: int, num_inputs: int, num_outputs: int
) -> Plan | None:
    """Taps sorted by (slot, row), for dweight, from the table's slot order; None where there are none.

    offsets [groups..., V + 1, 2], rows and sources [groups..., T].
    """
    num_slots, num_taps = offsets.shape[-2] - 1, rows.shape[-1]
    if 0 in (num_slots, num_taps, num_inputs, num_outputs):
        return None
    length = chunk_length(num_taps, num_slots, max(num_inputs, num_outputs))

    def one(offsets: jax.Array, rows: jax.Array, sources: jax.Array) -> Chunks:
        offsets, rows, sources = lax.optimization_barrier((offsets[:, 0], rows, sources))
        return make_chunks(offsets, rows, sources, length)

    return _share_counts(over_groups(one, rank, offsets, rows, sources))


def column_plan(indices: jax.Array, rank: int, num_inputs: int, num_slots: int) -> Plan | None:
    """Taps sorted by (column, row), for dweight of a table without slots; None where there are none.

    indices: [groups..., M, K].
    """
    num_outputs, columns = indices.shape[rank:]
    columns = min(columns, num_slots)
    if 0 in (num_outputs, columns, num_inputs):
        return None
    length = chunk_length(num_outputs * columns, columns, max(num_inputs, num_outputs))

    def one(indices: jax.Array) -> Chunks:
        return column_chunks(lax.optimization_barrier(indices), num_inputs, num_slots, length)

    return _share_counts(over_groups(one, rank, indices))


def tap_sources(offsets: jax.Array, num_taps: int) -> jax.Array:
    """[T], the source of each tap in the source order: how many sources end before it. offsets: [N + 1]."""
    ends = jnp.zeros(num_taps, jnp.int32).at[offsets[1:-1]].add(1, mode="drop")
    return jnp.cumsum(lax.optimization_barrier(ends), dtype=jnp.int32)


def is_tap(indices: jax.Array, slots: jax.Array | None, num_inputs: int, num_slots: int) -> jax.Array:
    """Which entries of a table [M, K] are no holes."""
    if slots is None:
        slots = jnp.arange(indices.shape[1], dtype=jnp.int32)
    return (indices >= 0) & (indices < num_inputs) & (slots >= 0) & (slots < num_slots)


def _sort_by_slot(slots: jax.Array, num_slots: int) -> tuple[jax.Array, jax.Array]:
    """slots [T] in [0, V], V a hole -> (where each slot starts [V + 1], the stable order [T])."""
    taps = jnp.arange(slots.shape[0], dtype=jnp.int32)
    slots, order = lax.sort((slots, taps), num_keys=1, is_stable=True)
    starts = jnp.searchsorted(slots, jnp.arange(num_slots + 1, dtype=jnp.int32), side="left")
    return starts.astype(jnp.int32), order


def _share_counts(chunks: Chunks) -> Plan:
    groups = tuple(range(chunks.scan_steps.ndim - 1))
    steps = jnp.max(chunks.scan_steps, axis=groups, keepdims=True)
    return Plan(chunks._replace(scan_steps=steps), jnp.max(chunks.used))
