"""The three passes of knn_conv in pure JAX.

    y[b, m] = bias + sum over taps (source, slot) of m: x[b, source] @ weight[slot]

Operands, results and attributes are those of the handlers (docs/handlers.md), less the workspace. Where the slot of a
tap is its column, forward loops over columns, which hold one tap a row, for a block of rows at a time. Otherwise taps
come sorted by slot, in chunks (`taps`, `plan`). The gathered rows of one block or chunk are all that is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv._xla.groups import over_groups, present
from jax_knnconv._xla.plan import column_plan, is_tap, row_plan, slot_plan, source_plan
from jax_knnconv._xla.sums import flatten_batch, matmul, outer_sum, round_to, row_blocks, row_sum
from jax_knnconv._xla.taps import Chunks, accumulate

# Rows that forward holds sums of at a time, and their gathered neighbours.
BLOCK_OUTPUTS = 16384


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
    plan = None if slots is None else row_plan(indices, slots, rank, num_inputs, num_slots)

    def one(
        x: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None,
        indices: jax.Array,
        slots: jax.Array | None,
        *chunks: jax.Array,
    ) -> jax.Array:
        def finish(sums: jax.Array, indices: jax.Array) -> jax.Array:
            y = sums if bias is None else sums + bias
            if zero_empty_rows:
                y = jnp.where(is_tap(indices, slots, num_inputs, num_slots).any(axis=1)[:, None], y, 0.0)
            return y.astype(out_dtype)

        rows = round_to(flatten_batch(x, 2), weight.dtype)
        if plan is not None:
            y = finish(accumulate(rows, weight, Chunks(*chunks), plan.num_chunks, indices.shape[0]), indices)
        elif slots is None and 0 not in (num_inputs, num_slots, *indices.shape):
            y = _forward_by_columns(rows, weight, indices, finish)
        else:
            y = finish(jnp.zeros((rows.shape[0], indices.shape[0], weight.shape[-1]), jnp.float32), indices)
        return y.reshape(*x.shape[:-2], *y.shape[1:])

    return over_groups(one, rank, x, weight, present(bias), indices, slots, *(plan.chunks if plan else ()))


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
    plan = source_plan(source_offsets, source_rows, source_slots, rank, g.shape[-2], weight.shape[-3])

    def one(g: jax.Array, weight: jax.Array, *chunks: jax.Array) -> jax.Array:
        rows = round_to(flatten_batch(g, 2), weight.dtype)
        if plan is None:
            dx = jnp.zeros((rows.shape[0], num_inputs, weight.shape[1]), jnp.float32)
        else:
            dx = accumulate(rows, weight.swapaxes(1, 2), Chunks(*chunks), plan.num_chunks, num_inputs)
        return dx.reshape(*g.shape[:-2], *dx.shape[1:]).astype(out_dtype)

    return over_groups(one, rank, g, weight, *(plan.chunks if plan else ()))


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
    if slots is None or slot_offsets is None or slot_rows is None or slot_sources is None:
        plan = column_plan(indices, group_rank, num_inputs, num_slots)
    else:
        plan = slot_plan(slot_offsets, slot_rows, slot_sources, group_rank, num_inputs, num_outputs)

    def one(
        x: jax.Array, g: jax.Array, indices: jax.Array, slots: jax.Array | None, *chunks: jax.Array
    ) -> tuple[jax.Array, ...]:
        x_rows, g_rows = round_to(flatten_batch(x, 2), g.dtype), flatten_batch(g, 2)
        if plan is None:
            dw = jnp.zeros((num_slots, x.shape[-1], g.shape[-1]), jnp.float32)
        else:
            dw = _dweight_by_chunks(x_rows, g_rows, Chunks(*chunks), plan.num_chunks, num_slots)
        if not with_bias:
            return (dw.astype(out_dtype),)
        if zero_empty_rows:
            g_rows = jnp.where(is_tap(indices, slots, num_inputs, num_slots).any(axis=1)[:, None], g_rows, 0)
        return dw.astype(out_dtype), row_sum(row_blocks(g_rows)).astype(bias_dtype)

    dw, *db = over_groups(one, group_rank, x, g, indices, slots, *(plan.chunks if plan else ()))
    return dw, db[0] if with_bias else jnp.zeros((0,), bias_dtype)


def _forward_by_columns(
    x: jax.Array, weight: jax.Array, indices: jax.Array, finish: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """x [B, N, C], weight [V, C, O], indices [M, K] -> finish(sums [B, rows, O] in fp32, indices of the rows)."""
    num_outputs, columns = indices.shape[0], min(indices.shape[1], weight.shape[0])
    blocks = -(-num_outputs // BLOCK_OUTPUTS)
    length = -(-num_outputs // blocks)

    def block(rows: jax.Array) -> jax.Array:
        by_column = rows.T

        def add_column(k: jax.Array, y: jax.Array) -> jax.Array:
            sources = by_column[k]
            inside = (sources >= 0) & (sources < x.shape[1])
            # Holes are selected to be 0, so that a NaN in the row that stands for them stays there.
            values = jnp.where(inside[:, None], jnp.take(x, sources, axis=1, mode="clip"), 0)
            return y + matmul(values, weight[k])

        start = jnp.zeros((x.shape[0], length, weight.shape[-1]), jnp.float32)
        return finish(lax.fori_loop(0, columns, add_column, start), rows)

    if blocks == 1:
        return block(indices)

    def write_block(i: jax.Array, y: jax.Array) -> jax.Array:
        # The last block ends with the last row; the rows that it shares with the one before come out the same.
        first = jnp.minimum(i * length, num_outputs - length)
        return lax.dynamic_update_slice_in_dim(y, block(lax.dynamic_slice_in_dim(indices, first, length)), first, 1)

    result = jax.eval_shape(block, indices[:length])
    return lax.fori_loop(0, blocks, write_block, jnp.zeros((x.shape[0], num_outputs, result.shape[-1]), result.dtype))


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
