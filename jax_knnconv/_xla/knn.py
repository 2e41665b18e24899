"""The three passes of knn_conv in pure JAX.

    y[b, m] = bias + sum over taps (source, slot) of m: x[b, source] @ weight[slot]

Operands, results and attributes are those of the handlers (docs/handlers.md), less the workspace. Where the slot of a tap
is its column, forward and dweight loop over columns, which hold one tap a row. Otherwise, and in dinput, taps come
sorted by slot, in chunks (`taps`). Gathered rows of one column or chunk are all that is held at a time.

A table that a jitted function closes over is a constant to XLA, which would sort it while compiling, a hundred times
slower than the compiled program does: barriers keep it from that.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv._xla.groups import over_groups, present
from jax_knnconv._xla.sums import flatten_batch, matmul, outer_sum, round_to, row_blocks, row_sum
from jax_knnconv._xla.taps import Chunks, accumulate, chunk_length, make_chunks


def forward(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    indices: jax.Array,
    slots: jax.Array | None,
    *,
    zero_empty_rows: bool,
    out_dtype: Any,
) -> jax.Array:
    """y[m] = bias + sum over k: x[indices[m, k]] @ weight[slots[m, k]].

    x [groups..., batch..., N, C], weight [groups..., V, C, O], bias [groups..., O], indices and slots
    [groups..., M, K] -> [groups..., batch..., M, O]. x may be float32 where weight is 16-bit; it is rounded to weight's
    dtype. Without slots, the slot is the column.
    """
    rank, slots = weight.ndim - 3, present(slots)
    num_inputs, num_slots = x.shape[-2], weight.shape[-3]
    by_chunks = slots is not None and 0 not in (num_inputs, num_slots, *indices.shape[rank:])
    chunks: tuple[jax.Array, ...] = ()
    count = None
    if by_chunks:
        chunks, count = _chunks_of_rows(indices, slots, rank, num_inputs, num_slots)

    def one(
        x: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None,
        indices: jax.Array,
        slots: jax.Array | None,
        *chunks: jax.Array,
    ) -> jax.Array:
        rows = round_to(flatten_batch(x, 2), weight.dtype)
        if by_chunks:
            y = accumulate(rows, weight, Chunks(*chunks), count, indices.shape[0])
        else:
            y = _forward_by_columns(rows, weight, indices)
        if bias is not None:
            y = y + bias
        if zero_empty_rows:
            y = jnp.where(_is_tap(indices, slots, num_inputs, num_slots).any(axis=1)[:, None], y, 0.0)
        return y.reshape(*x.shape[:-2], *y.shape[1:]).astype(out_dtype)

    return over_groups(one, rank, x, weight, present(bias), indices, slots, *chunks)


def dinput(
    g: jax.Array,
    weight: jax.Array,
    source_offsets: jax.Array,
    source_rows: jax.Array,
    source_slots: jax.Array,
    *,
    num_inputs: int,
    out_dtype: Any,
) -> jax.Array:
    """dx[source] = sum over taps (row, slot) of source: g[row] @ weight[slot]^T.

    g [groups..., batch..., M, O], weight [groups..., V, C, O], source_offsets [groups..., N + 1, 2], source_rows and
    source_slots [groups..., T] -> [groups..., batch..., N, C].
    """
    rank = weight.ndim - 3
    num_slots, channels, _ = weight.shape[rank:]
    num_taps = source_rows.shape[-1]
    chunks: tuple[jax.Array, ...] = ()
    count = None
    some = 0 not in (num_inputs, num_slots, num_taps, g.shape[-2])
    if some:
        length = chunk_length(num_taps, num_slots, max(num_inputs, g.shape[-2]))

        def plan(offsets: jax.Array, rows: jax.Array, slots: jax.Array) -> Chunks:
            offsets, rows, slots = lax.optimization_barrier((offsets[:, 0], rows, slots))
            taps = jnp.arange(num_taps, dtype=jnp.int32)
            sources = _sources_of(offsets, num_taps)
            # Equal slots keep the order by (source, row) in a stable sort.
            starts, order = _sort_by_slot(jnp.where(taps < offsets[-1], slots, num_slots), num_slots)
            return make_chunks(starts, sources[order], rows[order], length)

        chunks, count = _shared_count(over_groups(plan, rank, source_offsets, source_rows, source_slots))

    def one(g: jax.Array, weight: jax.Array, *chunks: jax.Array) -> jax.Array:
        rows = round_to(flatten_batch(g, 2), weight.dtype)
        if some:
            dx = accumulate(rows, weight.swapaxes(1, 2), Chunks(*chunks), count, num_inputs)
        else:
            dx = jnp.zeros((rows.shape[0], num_inputs, channels), jnp.float32)
        return dx.reshape(*g.shape[:-2], *dx.shape[1:]).astype(out_dtype)

    return over_groups(one, rank, g, weight, *chunks)


def dweight(
    x: jax.Array,
    g: jax.Array,
    indices: jax.Array,
    slots: jax.Array | None,
    slot_offsets: jax.Array | None,
    slot_rows: jax.Array | None,
    slot_sources: jax.Array | None,
    *,
    num_slots: int,
    zero_empty_rows: bool,
    with_bias: bool,
    group_rank: int,
    out_dtype: Any,
    bias_dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """dw[slot] = sum over batch and the taps (row, source) of slot: x[source]^T g[row]; db = sum of g.

    x [groups..., batch..., N, C], g [groups..., batch..., M, O], indices and slots [groups..., M, K], slot_offsets
    [groups..., V + 1, 2], slot_rows and slot_sources [groups..., T] -> (dw [groups..., V, C, O], db [groups..., O] or
    [0] where `with_bias` is false). x may be float32 where g is 16-bit; it is rounded to g's dtype.
    """
    slots = present(slots)
    num_inputs, num_outputs = x.shape[-2], g.shape[-2]
    by_chunks = slots is not None and 0 not in (num_inputs, num_slots, *indices.shape[group_rank:])
    chunks: tuple[jax.Array, ...] = ()
    count = None
    if by_chunks:
        length = chunk_length(slot_rows.shape[-1], num_slots, max(num_inputs, num_outputs))

        def plan(offsets: jax.Array, rows: jax.Array, sources: jax.Array) -> Chunks:
            return make_chunks(*lax.optimization_barrier((offsets[:, 0], rows, sources)), length)

        chunks, count = _shared_count(over_groups(plan, group_rank, slot_offsets, slot_rows, slot_sources))

    def one(
        x: jax.Array, g: jax.Array, indices: jax.Array, slots: jax.Array | None, *chunks: jax.Array
    ) -> tuple[jax.Array, ...]:
        x_rows, g_rows = round_to(flatten_batch(x, 2), g.dtype), flatten_batch(g, 2)
        if by_chunks:
            dw = _dweight_by_chunks(x_rows, g_rows, Chunks(*chunks), count, num_slots)
        else:
            dw = _dweight_by_columns(x_rows, g_rows, indices, num_slots)
        if not with_bias:
            return (dw.astype(out_dtype),)
        if zero_empty_rows:
            taps = _is_tap(indices, slots, num_inputs, num_slots)
            g_rows = jnp.where(taps.any(axis=1)[:, None], g_rows, 0)
        return dw.astype(out_dtype), row_sum(row_blocks(g_rows)).astype(bias_dtype)

    dw, *db = over_groups(one, group_rank, x, g, indices, slots, *chunks)
    return dw, db[0] if with_bias else jnp.zeros((0,), bias_dtype)


def _is_tap(indices: jax.Array, slots: jax.Array | None, num_inputs: int, num_slots: int) -> jax.Array:
    """Which entries of [M, K] are no holes."""
    if slots is None:
        slots = jnp.arange(indices.shape[1], dtype=jnp.int32)
    return (indices >= 0) & (indices < num_inputs) & (slots >= 0) & (slots < num_slots)


def _gather_column(rows: jax.Array, indices: jax.Array) -> jax.Array:
    """rows [B, N, C] at indices [M] -> [B, M, C]. Holes are selected to be 0, so that a NaN at any row stays there."""
    inside = (indices >= 0) & (indices < rows.shape[1])
    return jnp.where(inside[:, None], jnp.take(rows, indices, axis=1, mode="clip"), 0)


def _forward_by_columns(x: jax.Array, weight: jax.Array, indices: jax.Array) -> jax.Array:
    """x [B, N, C], weight [V, C, O], indices [M, K] -> [B, M, O] in fp32."""
    zero = jnp.zeros((x.shape[0], indices.shape[0], weight.shape[-1]), jnp.float32)
    columns = min(indices.shape[1], weight.shape[0])
    if 0 in (x.shape[1], columns, indices.shape[0]):
        return zero
    by_column = indices.T

    def add_column(k: jax.Array, y: jax.Array) -> jax.Array:
        return y + matmul(_gather_column(x, by_column[k]), weight[k])

    return lax.fori_loop(0, columns, add_column, zero)


def _dweight_by_columns(x: jax.Array, g: jax.Array, indices: jax.Array, num_slots: int) -> jax.Array:
    """x [B, N, C], g [B, M, O], indices [M, K] -> [V, C, O] in fp32."""
    columns = min(indices.shape[1], num_slots)
    if 0 in (x.shape[0], x.shape[1], columns, indices.shape[0]):
        return jnp.zeros((num_slots, x.shape[-1], g.shape[-1]), jnp.float32)
    g_blocks = row_blocks(g)
    dw = lax.map(lambda column: outer_sum(row_blocks(_gather_column(x, column)), g_blocks), indices.T[:columns])
    return jnp.pad(dw, ((0, num_slots - columns), (0, 0), (0, 0)))


def _dweight_by_chunks(x: jax.Array, g: jax.Array, chunks: Chunks, count: jax.Array, num_slots: int) -> jax.Array:
    """x [B, N, C], g [B, M, O] -> [V, C, O] in fp32; the chunks' targets are rows of g."""

    def add_chunk(i: jax.Array, dw: jax.Array) -> jax.Array:
        rows, slot = chunks.targets[i], chunks.slots[i]
        # Both sides are selected: an entry that is no tap reads a row of g that may not be finite.
        taps = (rows >= 0)[:, None]
        x_rows = jnp.where(taps, jnp.take(x, chunks.sources[i], axis=1, mode="clip"), 0)
        g_rows = jnp.where(taps, jnp.take(g, rows, axis=1, mode="clip"), 0)
        return dw.at[slot].add(outer_sum(row_blocks(x_rows), row_blocks(g_rows)))

    start = jnp.zeros((num_slots, x.shape[-1], g.shape[-1]), jnp.float32)
    return lax.fori_loop(0, count, add_chunk, start)


def _chunks_of_rows(
    indices: jax.Array, slots: jax.Array, rank: int, num_inputs: int, num_slots: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The chunks of forward: taps sorted by (slot, row) from indices and slots [groups..., M, K]."""
    num_outputs, columns = indices.shape[rank:]
    length = chunk_length(num_outputs * columns, num_slots, max(num_inputs, num_outputs))

    def plan(indices: jax.Array, slots: jax.Array) -> Chunks:
        indices, slots = lax.optimization_barrier((indices, slots))
        taps = _is_tap(indices, slots, num_inputs, num_slots)
        starts, order = _sort_by_slot(jnp.where(taps, slots, num_slots).reshape(-1), num_slots)
        return make_chunks(starts, order // columns, indices.reshape(-1)[order], length)

    return _shared_count(over_groups(plan, rank, indices, slots))


def _sources_of(offsets: jax.Array, num_taps: int) -> jax.Array:
    """The source of each of the taps in source order, from where each source's taps start: how many ended before it."""
    ends = jnp.zeros(num_taps, jnp.int32).at[offsets[1:-1]].add(1, mode="drop")
    return jnp.cumsum(lax.optimization_barrier(ends), dtype=jnp.int32)


def _sort_by_slot(slots: jax.Array, num_slots: int) -> tuple[jax.Array, jax.Array]:
    """slots [T] in [0, V], V a hole -> (where each slot starts [V + 1], the stable order [T])."""
    taps = jnp.arange(slots.shape[0], dtype=jnp.int32)
    slots, order = lax.sort((slots, taps), num_keys=1, is_stable=True)
    starts = jnp.searchsorted(slots, jnp.arange(num_slots + 1, dtype=jnp.int32), side="left")
    return starts.astype(jnp.int32), order


def _shared_count(chunks: Chunks) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The chunks of all groups and the number of the longest, which all loop to: a batched bound would slow each step.

    The doublings are shared likewise. Chunks past a group's own number hold no tap.
    """
    groups = tuple(range(chunks.scan_steps.ndim - 1))
    steps = jnp.max(chunks.scan_steps, axis=groups, keepdims=True)
    return tuple(chunks._replace(scan_steps=steps)), jnp.max(chunks.count)
