"""Compact, equal parts of a set of nodes, by halving it again and again across its longest side."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

# Within a part the halving goes on to blocks of so many nodes: rows that are read together then lie together.
_BLOCK = 64
# Hop counts from so many nodes make the coordinates of a graph. With 12, parts of a 3-D cloud had a quarter more
# neighbours outside; 48 gained nothing.
_LANDMARKS = 24
_DIMENSIONS = 3


def equal_counts(num_nodes: int, num_parts: int) -> np.ndarray:
    """[num_parts] sizes that differ by at most one, the larger ones first."""
    return num_nodes // num_parts + (np.arange(num_parts) < num_nodes % num_parts)


def bisect(coordinates: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Recursive coordinate bisection of coordinates [N, D].

    Returns:
      order: [N], the nodes part after part, each part in the order of its own bisection.
      counts: [num_parts], the sizes of the parts, which differ by at most one.
    """
    counts = equal_counts(len(coordinates), num_parts)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    order = np.arange(len(coordinates))
    pending = [(0, num_parts)]  # parts [first, last) to be told apart
    while pending:
        first, last = pending.pop()
        start, end = bounds[first], bounds[last]
        if last - first == 1:
            _sort_blocks(coordinates, order, start, end)
            continue
        _sort_longest(coordinates, order, start, end)
        middle = (first + last) // 2
        pending += [(first, middle), (middle, last)]
    return order, counts


def _sort_longest(coordinates: np.ndarray, order: np.ndarray, start: int, end: int) -> None:
    """Sort the nodes order[start:end] along the axis in which they extend farthest; ties keep their order."""
    if end - start < 2:
        return
    places = coordinates[order[start:end]]
    axis = np.argmax(np.ptp(places, axis=0))
    order[start:end] = order[start:end][np.argsort(places[:, axis], kind="stable")]


def _sort_blocks(coordinates: np.ndarray, order: np.ndarray, start: int, end: int) -> None:
    pending = [(start, end)]
    while pending:
        start, end = pending.pop()
        if end - start > _BLOCK:
            _sort_longest(coordinates, order, start, end)
            middle = (start + end) // 2
            pending += [(start, middle), (middle, end)]


def hop_coordinates(indices: np.ndarray, num_inputs: int) -> np.ndarray:
    """[N, 3] coordinates of source rows, from a table's indices [M, K] alone.

    The taps are the edges of a graph. A node's hop counts to a few nodes that lie far apart, reduced to their principal
    axes, say where it lies. Where M = N, rows and sources are taken to be the same nodes.
    """
    num_rows = len(indices)
    is_tap = (indices >= 0) & (indices < num_inputs)
    rows, sources = np.nonzero(is_tap)[0], indices[is_tap].astype(np.int64)
    num_nodes = num_inputs
    if num_rows != num_inputs:
        rows, num_nodes = rows + num_inputs, num_inputs + num_rows
    ends = np.concatenate([rows, sources]), np.concatenate([sources, rows])
    graph = sparse.csr_array((np.ones(2 * len(rows), bool), ends), shape=(num_nodes, num_nodes))

    hops = np.zeros((num_inputs, _LANDMARKS))
    nearest = np.full(num_inputs, np.inf)
    landmark = 0
    for column in range(min(_LANDMARKS, num_inputs)):
        found = csgraph.dijkstra(graph, unweighted=True, indices=landmark)[:num_inputs]
        reached = np.isfinite(found)
        hops[:, column] = np.where(reached, found, 2 * found[reached].max() + 1)  # what is not connected is far
        nearest = np.minimum(nearest, hops[:, column])
        landmark = int(nearest.argmax())
    hops -= hops.mean(axis=0) if num_inputs else 0
    _, axes = np.linalg.eigh(hops.T @ hops)
    axes = axes[:, -_DIMENSIONS:]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(_DIMENSIONS)])
    return hops @ axes
