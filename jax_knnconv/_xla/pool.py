"""Pooling over a table in pure JAX: a column of neighbours at a time forward, a tap of each source at a time back.

Nothing of the size of all gathered rows is held, and no sum is scattered: both passes give the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv._primitive import group_sizes
from jax_knnconv._xla.groups import over_groups, present
from jax_knnconv._xla.plan import source_plan, tap_sources
from jax_knnconv._xla.sums import flatten_batch
from jax_knnconv._xla.taps import Chunks, add_chunks

# So many columns, or taps, are one fused loop over the results.
_UNROLLED_COLUMNS, _UNROLLED_TAPS = 16, 8
# Where a source has more taps than that, all would wait for it: their sums are taken in chunks instead.
_LONGEST_LIST = 64


def winner_dtype(num_taps: int) -> Any:
    """What holds a column of a table, `num_taps` where there is none, and one more."""
    return jnp.uint8 if num_taps + 1 < 2**8 else jnp.int32


def greatest(x: jax.Array, indices: jax.Array, *, rank: int) -> tuple[jax.Array, jax.Array]:
    """The greatest x[indices[m, k], c] and its column k, the first of equal ones; 0 and K where all are holes.

    x [groups..., batch..., N, C], indices [groups..., M, K] -> two [groups..., batch..., M, C]. A NaN is the greatest.
    """

    def one(x: jax.Array, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, none = flatten_batch(x, 2), indices.shape[1]
        shape = (rows.shape[0], indices.shape[0], rows.shape[2])

        # A pass for each result: loops of one result hold no neighbours between their steps.
        def raise_to(k: jax.Array, best: jax.Array) -> jax.Array:
            values, inside = _neighbours(rows, indices, k)
            return jnp.where(inside, jnp.maximum(best, values), best)

        best = _over_columns(indices, rows, raise_to, jnp.full(shape, -jnp.inf, rows.dtype))

        def find(k: jax.Array, winner: jax.Array) -> jax.Array:
            values, inside = _neighbours(rows, indices, k)
            wins = inside & ((values == best) | (jnp.isnan(values) & jnp.isnan(best))) & (winner == none)
            return jnp.where(wins, k.astype(winner.dtype), winner)

        winner = _over_columns(indices, rows, find, jnp.full(shape, none, winner_dtype(none)))
        has_tap = ((indices >= 0) & (indices < rows.shape[1])).any(axis=1)
        best = jnp.where(has_tap[:, None], best, 0)
        return best.reshape(*x.shape[:-2], *shape[1:]), winner.reshape(*x.shape[:-2], *shape[1:])

    return over_groups(one, rank, x, indices)


def gather(x: jax.Array, winner: jax.Array | None, indices: jax.Array, *, rank: int, out_dtype: Any) -> jax.Array:
    """y[m, c] = x[indices[m, winner[m, c]], c]; without winners the sum over k of x[indices[m, k], c], in float32.

    x [groups..., batch..., N, C], winner [groups..., batch..., M, C], indices [groups..., M, K]
    -> [groups..., batch..., M, C].
    """

    def one(x: jax.Array, winner: jax.Array | None, indices: jax.Array) -> jax.Array:
        rows = flatten_batch(x, 2)
        shape = (rows.shape[0], indices.shape[0], rows.shape[2])
        if winner is None or 0 in (rows.shape[1], indices.shape[1]):

            def add(k: jax.Array, total: jax.Array) -> jax.Array:
                values, inside = _neighbours(rows, indices, k)
                return total + jnp.where(inside, values, 0).astype(jnp.float32)

            y = _over_columns(indices, rows, add, jnp.zeros(shape, jnp.float32))
        else:
            padded = jnp.pad(indices, ((0, 0), (0, 1)), constant_values=-1)
            sources = padded[jnp.arange(len(indices))[:, None], flatten_batch(winner, 2)]
            values = jnp.take_along_axis(rows, jnp.maximum(sources, 0), axis=1, mode="clip")
            y = jnp.where(sources >= 0, values, 0)
        return y.astype(out_dtype).reshape(*x.shape[:-2], *shape[1:])

    return over_groups(one, rank, x, present(winner), indices)


def spread(
    g: jax.Array,
    winner: jax.Array | None,
    indices: jax.Array,
    slots: jax.Array | None,
    source_offsets: jax.Array,
    source_rows: jax.Array,
    source_slots: jax.Array,
    *,
    rank: int,
    num_inputs: int,
    out_dtype: Any,
) -> jax.Array:
    """dx[n, c] = sum over the taps (m, k) of n, where k = winner[m, c], of g[m, c]; without winners over all taps.

    The transpose of `gather`. g, winner [groups..., batch..., M, C] -> [groups..., batch..., N, C].
    """
    num_taps, num_outputs = source_rows.shape[-1], g.shape[-2]
    if 0 in (num_taps, num_outputs, num_inputs):
        sizes = group_sizes(rank, (g, indices, source_rows))
        return jnp.zeros((*sizes, *g.shape[rank:-2], num_inputs, g.shape[-1]), out_dtype)
    offsets = source_offsets[..., 0]
    longest = jnp.max(jnp.diff(offsets, axis=-1))
    picks, slots = present(winner) is not None, present(slots)
    columns = source_slots
    if picks and slots is not None:
        columns = over_groups(_first_columns, rank, indices, slots, offsets, source_rows, source_slots)

    def flat(g: jax.Array, winner: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        return flatten_batch(g, 2), None if winner is None else flatten_batch(winner, 2)

    def round_as(total: jax.Array, g: jax.Array) -> jax.Array:
        return total.astype(out_dtype).reshape(*g.shape[:-2], *total.shape[1:])

    def by_lists() -> jax.Array:
        def one(
            g: jax.Array, winner: jax.Array | None, offsets: jax.Array, rows: jax.Array, columns: jax.Array
        ) -> jax.Array:
            return round_as(_add_lists(*flat(g, winner), offsets, rows, columns, longest), g)

        return over_groups(one, rank, g, present(winner), offsets, source_rows, columns)

    def by_chunks() -> jax.Array:
        # Taps go by their number, all as if of one slot: their order is by source already.
        numbers = jnp.broadcast_to(jnp.arange(num_taps, dtype=jnp.int32), source_rows.shape)
        plan = source_plan(source_offsets, numbers, source_slots, rank, num_outputs, 1)
        assert plan is not None

        def one(g: jax.Array, winner: jax.Array | None, rows: jax.Array, columns: jax.Array, *of: jax.Array) -> Any:
            chunks, (values, won) = Chunks(*of), flat(g, winner)
            total = jnp.zeros((values.shape[0], num_inputs, values.shape[2]), jnp.float32)

            def chunk(i: jax.Array) -> jax.Array:
                return _contributions(values, won, rows, columns, chunks.sources[i])

            return round_as(add_chunks(chunk, chunks, plan.num_chunks, total), g)

        return over_groups(one, rank, g, present(winner), source_rows, columns, *plan.chunks)

    return lax.cond(longest <= _LONGEST_LIST, by_lists, by_chunks)


def _add_lists(
    values: jax.Array,
    won: jax.Array | None,
    offsets: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    longest: jax.Array,
) -> jax.Array:
    """The first taps of all sources, then the second ones, and so on up to the longest list: [B, N, C] in float32."""

    def step(i: jax.Array, total: jax.Array) -> jax.Array:
        for tap in range(_UNROLLED_TAPS):
            taps = offsets[:-1] + (i * _UNROLLED_TAPS + tap)
            inside = (taps < offsets[1:])[:, None]
            total += jnp.where(inside, _contributions(values, won, rows, columns, taps), 0.0)
        return total

    start = jnp.zeros((values.shape[0], offsets.shape[0] - 1, values.shape[2]), jnp.float32)
    return lax.fori_loop(0, -(-longest // _UNROLLED_TAPS), step, start)


def _contributions(
    values: jax.Array, won: jax.Array | None, rows: jax.Array, columns: jax.Array, taps: jax.Array
) -> jax.Array:
    """[B, L, C]: what taps [L] hand on of cotangents [B, M, C]: where their column won, or all."""
    at = jnp.take(rows, taps, mode="clip")
    taken = jnp.take(values, at, axis=1, mode="clip").astype(jnp.float32)
    if won is None:
        return taken
    wins = jnp.take(won, at, axis=1, mode="clip") == jnp.take(columns, taps, mode="clip").astype(won.dtype)[:, None]
    # A selection: a cotangent that is not finite belongs to the winner alone.
    return jnp.where(wins, taken, 0.0)


def _first_columns(
    indices: jax.Array, slots: jax.Array, offsets: jax.Array, tap_rows: jax.Array, tap_slots: jax.Array
) -> jax.Array:
    """[T], the first column of each tap in its row; K + 1, which never wins, for one that repeats the tap before.

    Equal taps of a row have equal values, of which the first wins; in the source order they lie side by side.
    """
    sources = tap_sources(offsets, tap_rows.shape[0])
    rows = jnp.maximum(tap_rows, 0)
    same = (indices[rows] == sources[:, None]) & (slots[rows] == tap_slots[:, None])
    columns = jnp.argmax(same, axis=1).astype(jnp.int32)
    taps = jnp.stack([sources, tap_rows, tap_slots])
    repeats = jnp.concatenate([jnp.zeros(1, bool), (taps[:, 1:] == taps[:, :-1]).all(axis=0)])
    return jnp.where(repeats, indices.shape[1] + 1, columns)


def _over_columns(
    indices: jax.Array, rows: jax.Array, step: Callable[[jax.Array, jax.Array], jax.Array], start: jax.Array
) -> jax.Array:
    """step(k, result) over the columns of indices [M, K]; rows [B, N, C] that are none have no neighbours."""
    columns = indices.shape[1] if rows.shape[1] else 0
    return lax.fori_loop(0, columns, step, start, unroll=min(columns, _UNROLLED_COLUMNS)) if columns else start


def _neighbours(rows: jax.Array, indices: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """rows [B, N, C] at column k of indices [M, K] -> ([B, M, C], which of them are no holes [M, 1])."""
    sources = lax.dynamic_index_in_dim(indices, k, axis=1, keepdims=False)
    inside = (sources >= 0) & (sources < rows.shape[1])
    return jnp.take(rows, sources, axis=1, mode="clip"), inside[:, None]
