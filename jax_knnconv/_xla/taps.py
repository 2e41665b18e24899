"""Taps in chunks: how taps sorted by (slot, target row) become matrix products without a scatter that could collide.

A chunk holds up to a fixed number of taps of one slot, so that it is one product with that slot's matrix. Taps of one
cell (target row, slot) lie side by side; they are summed in fp32 by a segmented scan, after which each target row
occurs once in a chunk. Chunk after chunk then adds its rows to the result: in a fixed order, and without collisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv._xla.sums import BLOCK_UNIT, matmul, round_up

MAX_CHUNK = 16384
# A chunk may always be this long, however few rows the operands have: a hub must not take a step for each tap.
MIN_ROOM = 1024


class Chunks(NamedTuple):
    """The taps of a table in chunks; entries that are no tap have negative targets, each a different one."""

    targets: jax.Array  # [chunks, length], rows of the result
    sources: jax.Array  # [chunks, length], rows of the operand, all within its bounds
    slots: jax.Array  # [chunks]
    scan_steps: jax.Array  # [chunks], doublings until the longest run of equal targets is summed
    used: jax.Array  # [], how many chunks hold taps


def chunk_length(num_taps: int, num_slots: int, num_rows: int) -> int:
    """Taps a chunk: about a slot's share, in equal pieces, so that few entries stay empty.

    `num_rows`, the larger row count of operand and result, bounds it, so that a chunk's rows are no larger than those.
    """
    share = -(-num_taps // max(num_slots, 1))
    longest = min(MAX_CHUNK, max(num_rows, MIN_ROOM))
    pieces = max(1, -(-share // longest))
    length = -(-share // pieces)
    if pieces > 1:
        length = round_up(length, BLOCK_UNIT)
    if num_taps > 2**31 - 1 - length:
        raise ValueError(
            f"table: got {num_taps} taps (rows x columns), expected fewer than 2**31 for implementation='xla', "
            "which counts taps in int32"
        )
    return length


def make_chunks(slot_starts: jax.Array, targets: jax.Array, sources: jax.Array, length: int) -> Chunks:
    """Cut taps sorted by (slot, target) into chunks.

    Args:
      slot_starts: [V + 1], where each slot's taps start, and the end of the last.
      targets: [T], the row of the result that a tap adds to; T > 0.
      sources: [T], the row of the operand that it reads.
      length: taps a chunk.
    """
    num_slots, num_taps = slot_starts.shape[0] - 1, targets.shape[0]
    pieces = -(-jnp.diff(slot_starts) // length)
    firsts = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(pieces, dtype=jnp.int32)])
    most = (num_taps + num_slots * (length - 1)) // length
    chunk = jnp.arange(most, dtype=jnp.int32)
    slots = jnp.clip(jnp.searchsorted(firsts, chunk, side="right").astype(jnp.int32) - 1, 0, num_slots - 1)
    starts = slot_starts[slots] + (chunk - firsts[slots]) * length
    lengths = jnp.where(chunk < firsts[-1], jnp.minimum(slot_starts[slots + 1] - starts, length), 0)
    lane = jnp.arange(length, dtype=jnp.int32)
    valid = lane < lengths[:, None]
    at = jnp.where(valid, starts[:, None] + lane, 0)
    targets = jnp.where(valid, targets[at], -1 - lane)
    return Chunks(targets, jnp.where(valid, sources[at], 0), slots, _scan_steps(targets), firsts[-1])


def column_chunks(indices: jax.Array, num_inputs: int, num_slots: int, length: int) -> Chunks:
    """Cut the columns of a table without slots, indices [M, K], into chunks; holes stay as entries that are no tap."""
    num_targets, columns = indices.shape[0], min(indices.shape[1], num_slots)
    pieces = -(-num_targets // length)
    filled = jnp.pad(indices[:, :columns], ((0, pieces * length - num_targets), (0, 0)), constant_values=-1)
    sources = filled.T.reshape(columns * pieces, length)
    rows = jnp.tile(jnp.arange(pieces * length, dtype=jnp.int32).reshape(pieces, length), (columns, 1))
    taps = (sources >= 0) & (sources < num_inputs)
    targets = jnp.where(taps, rows, -1 - jnp.arange(length, dtype=jnp.int32))
    slots = jnp.repeat(jnp.arange(columns, dtype=jnp.int32), pieces)
    used = jnp.asarray(columns * pieces, jnp.int32)
    return Chunks(targets, jnp.where(taps, sources, 0), slots, jnp.zeros_like(slots), used)


def accumulate(values: jax.Array, weight: jax.Array, chunks: Chunks, count: jax.Array, num_targets: int) -> jax.Array:
    """result[b, target] += values[b, source] @ weight[slot] over the taps of the first `count` chunks, in fp32.

    values [B, S, D], weight [V, D, P] -> [B, num_targets, P].
    """

    def products(i: jax.Array) -> jax.Array:
        return matmul(jnp.take(values, chunks.sources[i], axis=1, mode="clip"), weight[chunks.slots[i]])

    return add_chunks(products, chunks, count, jnp.zeros((values.shape[0], num_targets, weight.shape[-1]), jnp.float32))


def add_chunks(
    values: Callable[[jax.Array], jax.Array], chunks: Chunks, count: jax.Array, total: jax.Array
) -> jax.Array:
    """total[b, target] += values(i)[b, lane] over the lanes of the first `count` chunks i, in fp32.

    total [B, rows, P]; values(i) [B, length, P] are those of a chunk's taps.
    """

    def step(i: jax.Array, total: jax.Array) -> jax.Array:
        targets = chunks.targets[i]
        sums = _sum_runs(values(i), _run_positions(targets), chunks.scan_steps[i])
        # Only the last tap of a run holds its sum; all others point outside, to different rows, and are dropped.
        lane = jnp.arange(targets.shape[0], dtype=jnp.int32)
        last = jnp.concatenate([targets[1:] != targets[:-1], jnp.ones(1, bool)])
        rows = jnp.where(last, targets, -1 - lane)
        return total.at[:, rows].add(sums, mode="drop", unique_indices=True, wrap_negative_indices=False)

    return lax.fori_loop(0, count, step, total)


def _run_positions(targets: jax.Array) -> jax.Array:
    """How many equal targets precede each one in its run, along the last axis."""
    lane = jnp.broadcast_to(jnp.arange(targets.shape[-1], dtype=jnp.int32), targets.shape)
    starts = jnp.concatenate([jnp.ones_like(targets[..., :1], bool), targets[..., 1:] != targets[..., :-1]], axis=-1)
    return lane - lax.cummax(jnp.where(starts, lane, 0), axis=targets.ndim - 1)


def _scan_steps(targets: jax.Array) -> jax.Array:
    """The bit length of the longest run's last position: 0 where no target occurs twice."""
    longest = jnp.max(_run_positions(targets), axis=-1, initial=0)
    return jnp.int32(32) - lax.clz(longest)


def _sum_runs(values: jax.Array, positions: jax.Array, steps: jax.Array) -> jax.Array:
    """values [B, L, P] summed from the start of each run to each entry, by doubling."""
    lane = jnp.arange(values.shape[1], dtype=jnp.int32)

    def double(i: jax.Array, sums: jax.Array) -> jax.Array:
        reach = jnp.left_shift(jnp.int32(1), i.astype(jnp.int32))
        before = jnp.take(sums, jnp.maximum(lane - reach, 0), axis=1, mode="clip")
        # A selection, not a product with 0 or 1: infinities of one run must not reach another.
        return sums + jnp.where((positions >= reach)[:, None], before, 0.0)

    return lax.fori_loop(0, steps, double, values)
