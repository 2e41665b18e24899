"""One table out of several: samples of different sizes as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_knnconv._reading import as_array
from jax_knnconv._table_orders import HOLE
from jax_knnconv.table import NeighborTable


def concatenate_tables(tables: Sequence[NeighborTable]) -> NeighborTable:
    """One table over the rows of all samples, one sample behind the other, of whatever sizes.

        y = knn_conv(concatenate([x0, x1, ...]), weight, concatenate_tables([table0, table1, ...]))
        equals concatenate([knn_conv(x0, weight, table0), knn_conv(x1, weight, table1), ...])

    Nothing is padded but the taps of a row, by holes, to the most that a sample has. Numbers of rows are shapes: a new
    sum of them compiles a jitted function anew. Rows behind the last that nothing reads, and a table of holes only,
    bring batches to a common size.

    Args:
      tables: concrete tables [M_i, K_i] of N_i source rows, with one number of slots V.

    Returns:
      A table [sum of M_i, most of K_i] with num_inputs = sum of N_i and num_slots = V.

    Raises:
      TypeError: no tables; a traced one.
      ValueError: an empty sequence, a table of samples, or numbers of slots that differ.
    """
    samples = [_read(i, table) for i, table in enumerate(_read_tables(tables))]
    width = max(sample.indices.shape[1] for sample in samples)
    starts = np.cumsum([0, *(sample.num_inputs for sample in samples)])
    has_slots = any(sample.indices.shape[1] != width or sample.has_slots for sample in samples)
    indices = [
        _pad(np.where(sample.indices == HOLE, HOLE, sample.indices + start), (len(sample.indices), width), HOLE)
        for sample, start in zip(samples, starts, strict=False)
    ]
    slots = [_pad(s.slots, (len(s.slots), width), tables[0].num_slots - 1) for s in samples] if has_slots else None
    return NeighborTable(
        np.concatenate(indices),
        None if slots is None else np.concatenate(slots),
        num_inputs=int(starts[-1]),
        num_slots=tables[0].num_slots,
    )


def stack_tables(tables: Sequence[NeighborTable]) -> NeighborTable:
    """One table a sample, [S, M, K], of samples that are padded to the size of the largest.

        knn_conv(x, weight, stack_tables(tables))[i, :M_i] equals knn_conv(x[i, :N_i], weight, tables[i])

    Rows of padding hold holes only: they give the bias, or 0 with ``empty_rows="zero"``, and read nothing, nor does any
    tap read the padding of x, whatever stands there.

    Args:
      tables: concrete tables [M_i, K_i] of N_i source rows, with one number of slots V.

    Returns:
      A table [S, most of M_i, most of K_i] with num_inputs = most of N_i and num_slots = V.

    Raises:
      TypeError, ValueError: as `concatenate_tables`.
    """
    samples = [_read(i, table) for i, table in enumerate(_read_tables(tables))]
    shape = tuple(max(sample.indices.shape[axis] for sample in samples) for axis in (0, 1))
    has_slots = any(sample.indices.shape[1] != shape[1] or sample.has_slots for sample in samples)
    slots = [_pad(sample.slots, shape, tables[0].num_slots - 1) for sample in samples] if has_slots else None
    return NeighborTable(
        np.stack([_pad(sample.indices, shape, HOLE) for sample in samples]),
        None if slots is None else np.stack(slots),
        num_inputs=max(sample.num_inputs for sample in samples),
        num_slots=tables[0].num_slots,
    )


class _Sample(NamedTuple):
    indices: np.ndarray  # [M, K] int64, every hole as HOLE
    slots: np.ndarray  # [M, K]
    has_slots: bool
    num_inputs: int


def _read_tables(tables: Any) -> Sequence[NeighborTable]:
    if not isinstance(tables, Sequence):
        raise TypeError(f"tables: got {type(tables).__name__}, expected a sequence of NeighborTable")
    if not tables:
        raise ValueError("tables: got an empty sequence, expected at least one NeighborTable")
    for i, table in enumerate(tables):
        if not isinstance(table, NeighborTable):
            raise TypeError(f"tables: got {type(table).__name__} at {i}, expected a NeighborTable")
        if table.group_shape:
            raise ValueError(f"tables: got {table} at {i}, expected one table [M, K]")
        if table.num_slots != tables[0].num_slots:
            raise ValueError(f"tables: got num_slots={table.num_slots} at {i}, expected {tables[0].num_slots} as at 0")
    return tables


def _read(i: int, table: NeighborTable) -> _Sample:
    indices = as_array(f"tables, indices of {i}", table.indices).astype(np.int64)
    inside = (indices >= 0) & (indices < table.num_inputs)
    if table.slots is None:
        slots = np.broadcast_to(np.arange(table.num_taps, dtype=np.int32), indices.shape)
    else:
        # A slot out of range, which only a table built under jit can have, belongs to a hole.
        slots = as_array(f"tables, slots of {i}", table.slots).clip(0, max(table.num_slots - 1, 0))
    return _Sample(np.where(inside, indices, HOLE), slots, table.slots is not None, table.num_inputs)


def _pad(array: np.ndarray, shape: tuple[int, ...], value: int) -> np.ndarray:
    widths = [(0, size - have) for size, have in zip(shape, array.shape, strict=True)]
    return np.pad(array, widths, constant_values=value)
