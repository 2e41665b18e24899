"""The orders of a table's taps that kernels read: by source row and by slot; NumPy and XLA give the same arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import sparse

# What stands for a tap that no int32 describes, and in the derived orders for entries past the last tap.
HOLE = -1


def _narrowest(count: int) -> type[np.signedinteger]:
    """The dtype of numbers below `count`: most of what building a large table takes is numbers of taps."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def _counting_sort(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The stable order that sorts keys in [0, num_keys), and the offsets of each key's run, in linear time.

    A matrix with a one at (position, key) lists, in compressed column form, each key's positions in ascending order.
    """
    if not keys.size:
        return np.zeros(0, np.int64), np.zeros(num_keys + 1, np.int64)
    ones = np.ones(keys.size, np.int8)
    starts = np.arange(keys.size + 1, dtype=_narrowest(keys.size + 1))
    columns = sparse.csr_array((ones, keys, starts), shape=(keys.size, num_keys)).tocsc()
    return columns.indices, columns.indptr


def _sort_rows_by_slot(indices: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not slots.size or (slots[..., 1:] >= slots[..., :-1]).all():
        return indices, slots
    by_slot, _ = _counting_sort(slots.ravel(), int(slots.max()) + 1)
    num_rows = slots.size // slots.shape[-1]
    by_row, _ = _counting_sort(by_slot // slots.shape[-1], num_rows)
    order = by_slot[by_row]
    return indices.ravel()[order].reshape(indices.shape), slots.ravel()[order].reshape(slots.shape)


def to_words(offsets: np.ndarray) -> np.ndarray:
    """[...] int64 -> [..., 2] int32, low word first."""
    return np.ascontiguousarray(offsets, "<i8")[..., None].view("<i4")


def derive_concrete(
    indices: np.ndarray, slots: np.ndarray | None, num_inputs: int, num_slots: int
) -> tuple[np.ndarray | None, ...]:
    """The leaves of a table in NumPy; a derived order is one stable counting sort of the one before."""
    if slots is not None:
        indices, slots = _sort_rows_by_slot(indices, slots)
    *groups, num_rows, num_taps = indices.shape
    source_offsets = np.zeros((*groups, num_inputs + 1), np.int64)
    slot_offsets = np.zeros((*groups, num_slots + 1), np.int64)
    source_rows, source_slots, slot_rows, slot_sources = np.full((4, *groups, num_rows * num_taps), HOLE, np.int32)
    for group in np.ndindex(*groups):
        # Column after column is slot order where the slot is the column.
        flat = indices[group].ravel() if slots is not None else indices[group].T.ravel()
        taps = np.flatnonzero((flat >= 0) & (flat < num_inputs)).astype(_narrowest(flat.size), copy=False)
        if slots is None:
            tap_slots, tap_rows = np.divmod(taps, max(num_rows, 1))
        else:
            flat_slots = slots[group].ravel()
            order, slot_offsets[group] = _counting_sort(flat_slots[taps], num_slots)
            taps = taps[order]
            tap_slots, tap_rows = flat_slots[taps], taps // max(num_taps, 1)
        tap_sources = flat[taps]
        order, source_offsets[group] = _counting_sort(tap_sources, num_inputs)
        source_rows[group][: taps.size] = tap_rows[order]
        source_slots[group][: taps.size] = tap_slots[order]
        slot_rows[group][: taps.size] = tap_rows
        slot_sources[group][: taps.size] = tap_sources
    source_order = to_words(source_offsets), source_rows, source_slots
    slot_order = (None, None, None) if slots is None else (to_words(slot_offsets), slot_rows, slot_sources)
    return indices, slots, *source_order, *slot_order


def derive_traced(
    indices: jax.Array, slots: jax.Array | None, num_inputs: int, num_slots: int
) -> tuple[jax.Array | None, ...]:
    """The leaves of one table [M, K] in XLA: comparison sorts, whose ties are equal or stand in column order."""
    tap_rows, tap_slots = (lax.broadcasted_iota(np.int32, indices.shape, axis) for axis in (0, 1))
    if slots is not None:
        indices = jnp.where((slots >= 0) & (slots < num_slots), indices, HOLE)
        slots, indices = lax.sort((slots, indices), dimension=1, is_stable=True, num_keys=1)
        tap_slots = slots
    is_tap = ((indices >= 0) & (indices < num_inputs)).ravel()
    sources, tap_rows, tap_slots = indices.ravel(), tap_rows.ravel(), tap_slots.ravel()

    def order(keys: jax.Array, num_keys: int, *others: jax.Array, num_sorted: int) -> tuple[jax.Array, ...]:
        keys = jnp.where(is_tap, keys, num_keys)  # holes go behind the last tap
        keys, *payload = lax.sort((keys, *others), is_stable=True, num_keys=num_sorted)
        offsets = jnp.searchsorted(keys, jnp.arange(num_keys + 1, dtype=np.int32)).astype(np.int32)
        past = keys == num_keys
        words = jnp.stack([offsets, jnp.zeros_like(offsets)], axis=-1)
        return words, *(jnp.where(past, HOLE, array) for array in payload)

    source_offsets, source_slots, source_rows = order(sources, num_inputs, tap_slots, tap_rows, num_sorted=3)
    source_order = source_offsets, source_rows, source_slots
    if slots is None:
        return indices, slots, *source_order, None, None, None
    slot_order = order(tap_slots, num_slots, tap_rows, sources, num_sorted=2)
    return indices, slots, *source_order, *slot_order
