"""Tables of graphs: a list of edges, each with a kind if need be."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_knnconv._reading import as_array, as_integers, check_size
from jax_knnconv._table_orders import HOLE
from jax_knnconv.table import NeighborTable


def edge_table(
    sources: Any,
    targets: Any,
    slots: Any = None,
    *,
    num_inputs: int,
    num_outputs: int | None = None,
    num_slots: int | None = None,
) -> NeighborTable:
    """The table of a graph's edges, in any order: a graph convolution, with a matrix for each kind of edge.

        y[n, :] = sum over edges e with targets[e] = n of x[sources[e], :] @ weight[slots[e]]

    Edge lists are how graph libraries write neighbourhoods, and, as the pairs of one kernel cell after another, how
    sparse-convolution libraries do. The table has as many columns as the target with the most edges, so that one such
    target among many with few edges makes it large.

    Args:
      sources: [E], any integer dtype, concrete. An edge whose source lies outside [0, num_inputs) reads nothing.
      targets: [E], likewise, in [0, num_outputs).
      slots: [E], likewise, in [0, num_slots): the kind of each edge. None: all edges are of one kind, V = 1.
      num_inputs: N.
      num_outputs: M; None: N, edges between nodes of one kind.
      num_slots: V, required with slots.

    Returns:
      A NeighborTable [M, K] with slots, K the number of edges of the fullest target, at least 1.

    Raises:
      TypeError: an array that is traced or not of an integer dtype; a size that is no integer; slots without num_slots.
      ValueError: arrays of other shapes than [E]; a target or slot out of range.
    """
    num_inputs = check_size("num_inputs", num_inputs)
    num_outputs = num_inputs if num_outputs is None else check_size("num_outputs", num_outputs)
    sources = _read_integers("sources", sources)
    if sources.ndim != 1:
        raise ValueError(f"sources: got shape {sources.shape}, expected [E], one entry an edge")
    if slots is not None and num_slots is None:
        raise TypeError("num_slots: got None, expected an integer: it is required where slots are given")
    num_slots = 1 if num_slots is None else check_size("num_slots", num_slots, minimum=1)
    targets = _read_ends("targets", targets, sources.shape, num_outputs, "num_outputs")
    slots = (
        np.zeros_like(targets) if slots is None else _read_ends("slots", slots, sources.shape, num_slots, "num_slots")
    )

    reads = (sources >= 0) & (sources < num_inputs)
    sources, targets, slots = sources[reads].astype(np.int64), targets[reads], slots[reads]
    order = np.lexsort((slots, targets))
    rows = targets[order]
    counts = np.bincount(rows, minlength=num_outputs)
    columns = np.arange(rows.size) - (np.cumsum(counts) - counts)[rows]
    shape = (num_outputs, max(1, int(counts.max(initial=0))))
    indices, taps = np.full(shape, HOLE, np.int64), np.full(shape, num_slots - 1, np.int64)
    indices[rows, columns], taps[rows, columns] = sources[order], slots[order]
    return NeighborTable(indices, taps, num_inputs=num_inputs, num_slots=num_slots)


def _read_integers(name: str, value: Any) -> np.ndarray:
    return as_array(name, as_integers(name, value))  # which raises for a traced one


def _read_ends(name: str, value: Any, shape: tuple[int, ...], size: int, of: str) -> np.ndarray:
    """One integer in [0, size) an edge."""
    array = _read_integers(name, value)
    if array.shape != shape:
        raise ValueError(f"{name}: got shape {array.shape}, expected sources' {shape}")
    outside = (array < 0) | (array >= size)
    if outside.any():
        edge = int(np.flatnonzero(outside)[0])
        raise ValueError(f"{name}: got {array[edge]} at edge {edge}, expected [0, {of}) = [0, {size})")
    return array.astype(np.int64)
