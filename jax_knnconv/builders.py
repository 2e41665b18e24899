"""Tables of points in space: the nearest, or all within a radius."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from jax_knnconv._reading import as_array, check_size
from jax_knnconv._table_orders import HOLE
from jax_knnconv.table import NeighborTable

# Distances that one step of resolving ties may hold at once: 32 MB of float64, and as much again for the indices.
_TIE_BLOCK = 2**22
# The search prunes by distances to boxes, with a rounding of their own; nothing nearer by this factor is pruned.
_CLEARLY = 1 + 1e-9
_NO_REALS = "bcOSUmM"  # kinds of NumPy dtypes


def knn_table(
    points: Any,
    queries: Any = None,
    *,
    k: int,
    max_distance: float = math.inf,
    kernel_points: Any = None,
    workers: int = 1,
) -> NeighborTable:
    """The k nearest points of every query.

        indices[m, j] = the point that is the j-th nearest to queries[m]

    Neighbours stand in order of Euclidean distance (in float64), equally far ones in order of their index, whatever
    order the search finds them in. A query that is itself one of the points is its own first neighbour, unless a
    duplicate of it has a lower index. Where fewer than k points are near enough, holes follow. Thousands of equally far
    points (duplicates) make the search slow, since all of them must be seen.

    Args:
      points: [N, D] or, one table a sample, [G..., N, D]; concrete, finite.
      queries: [M, D] or [G..., M, D], the places of the output rows; the points themselves by default.
      k: K, the number of neighbours.
      max_distance: neighbours farther than this are left out.
      kernel_points: [V, D]. By default the weight slot of a neighbour is its rank, V = k. With kernel points, it is
        the one nearest to the offset (point - query), the lowest of equally near ones: a rigid geometric kernel,
        whose V may differ from k and whose slots may repeat within a row.
      workers: threads of the search, -1 for all cores.

    Returns:
      A NeighborTable with num_inputs = N and group_shape = G....

    Raises:
      TypeError: a traced or non-numeric array; k or workers is no integer, max_distance no number.
      ValueError: shapes that do not match, k < 1, max_distance < 0 or NaN, workers neither -1 nor positive, points that
        are not finite.
    """
    points, queries = _read_places(points, queries)
    k = check_size("k", k, minimum=1)
    max_distance = _read_distance("max_distance", max_distance)
    workers = _read_workers(workers)
    kernel = None if kernel_points is None else _read_kernel_points(kernel_points, points.shape[-1])
    groups = points.shape[:-2]
    indices = np.empty((*groups, queries.shape[-2], k), np.int64)
    slots = None if kernel is None else np.empty(indices.shape, np.int64)
    for group in np.ndindex(*groups):
        indices[group] = _nearest(points[group], queries[group], k, max_distance, workers)
        if kernel is not None and slots is not None:
            slots[group] = _nearest_kernel_points(points[group], queries[group], indices[group], kernel)
    num_slots = k if kernel is None else len(kernel)
    return NeighborTable(indices, slots, num_inputs=points.shape[-2], num_slots=num_slots)


def radius_table(
    points: Any,
    queries: Any = None,
    *,
    radius: float,
    max_neighbors: int | None = None,
    kernel_points: Any = None,
    workers: int = 1,
) -> NeighborTable:
    """All points within a radius of every query, nearest first.

        indices[m, :] = the points p with |p - queries[m]| <= radius, then holes

    The table has max_neighbors columns. A query with more points in reach keeps the nearest max_neighbors of them and
    drops the rest without a word; with max_neighbors=None the fullest query sets the number of columns (at least 1) and
    none is dropped. Order, ties, slots and the other arguments are those of `knn_table`.

    Returns:
      A NeighborTable with num_inputs = N; without kernel points, V = max_neighbors.

    Raises:
      TypeError, ValueError: as `knn_table`.
    """
    points, queries = _read_places(points, queries)
    radius, workers = _read_distance("radius", radius), _read_workers(workers)
    if max_neighbors is None:
        max_neighbors = 1
        for group in np.ndindex(*points.shape[:-2]):
            if points.shape[-2] and queries.shape[-2]:
                tree = cKDTree(points[group])
                reach = tree.query_ball_point(queries[group], _widen(radius), workers=workers, return_length=True)
                max_neighbors = max(max_neighbors, int(reach.max()))
    else:
        max_neighbors = check_size("max_neighbors", max_neighbors, minimum=1)
    return knn_table(
        points, queries, k=max_neighbors, max_distance=radius, kernel_points=kernel_points, workers=workers
    )


def _read_places(points: Any, queries: Any) -> tuple[np.ndarray, np.ndarray]:
    points = _read_reals("points", points)
    queries = points if queries is None else _read_reals("queries", queries)
    if points.shape[:-2] != queries.shape[:-2] or points.shape[-1] != queries.shape[-1]:
        raise ValueError(
            f"queries: got shape {queries.shape}, expected points' shape {points.shape} but for the number of rows"
        )
    return points, queries


def _read_reals(name: str, value: Any) -> np.ndarray:
    array = as_array(name, value)
    if array.dtype.kind in _NO_REALS:
        raise TypeError(f"{name}: got dtype {array.dtype}, expected real numbers")
    if array.ndim < 2 or array.shape[-1] < 1:
        raise ValueError(f"{name}: got shape {array.shape}, expected [rows, D] with D >= 1, or groups of them in front")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got values that are not finite, expected finite ones")
    return array


def _read_kernel_points(kernel_points: Any, dimensions: int) -> np.ndarray:
    kernel = _read_reals("kernel_points", kernel_points)
    if kernel.ndim != 2 or kernel.shape[1] != dimensions or not len(kernel):
        raise ValueError(f"kernel_points: got shape {kernel.shape}, expected [V, {dimensions}] with V >= 1")
    return kernel


def _read_distance(name: str, value: Any) -> float:
    number = as_array(name, value)
    if number.ndim or number.dtype.kind in _NO_REALS:
        raise TypeError(f"{name}: got {value!r} of type {type(value).__name__}, expected a number")
    if not number >= 0:
        raise ValueError(f"{name}: got {value}, expected a number of at least 0")
    return float(number)


def _read_workers(workers: Any) -> int:
    return -1 if workers == -1 else check_size("workers (-1 for all cores)", workers, minimum=1)


def _widen(distance: float) -> float:
    """A bound that the search's own rounding cannot make miss a point at exactly this distance, 0 included."""
    return distance * _CLEARLY + 1e-150


def _nearest(points: np.ndarray, queries: np.ndarray, k: int, max_distance: float, workers: int) -> np.ndarray:
    """[M, k] indices by (distance, index), holes last."""
    num_points, num_queries = len(points), len(queries)
    nearest = np.full((num_queries, k), HOLE, np.int64)
    if not num_points:
        return nearest
    tree = cKDTree(points)
    bound = _widen(max_distance)
    # The search breaks ties as its tree happens to be built. A row is settled once something farther than its k-th
    # neighbour has been seen: then all that are as far as the k-th are at hand. The others search on, twice as far.
    pending = np.arange(num_queries)
    reach = min(k, num_points) + 1
    while pending.size:
        unsettled = []
        block = max(1, _TIE_BLOCK // reach)
        for start in range(0, pending.size, block):
            rows = pending[start : start + block]
            distances, found = tree.query(queries[rows], reach, distance_upper_bound=bound, workers=workers)
            found = np.where(distances <= max_distance, found, num_points)
            distances = np.where(found < num_points, distances, np.inf)
            kth, last = distances[:, min(k, num_points) - 1], distances[:, -1]
            settled = (last > kth * _CLEARLY) | np.isinf(last)
            order = np.lexsort((found, distances), axis=-1)[:, :k]
            best = np.take_along_axis(found, order, axis=1)
            nearest[rows[settled], : best.shape[1]] = np.where(best < num_points, best, HOLE)[settled]
            unsettled.append(rows[~settled])
        pending = np.concatenate(unsettled)
        reach = min(2 * reach, num_points + 1)
    return nearest


def _nearest_kernel_points(
    points: np.ndarray, queries: np.ndarray, indices: np.ndarray, kernel: np.ndarray
) -> np.ndarray:
    """[M, K] kernel point nearest to each neighbour's offset from its query; 0 for holes."""
    slots = np.zeros(indices.shape, np.int64)
    rows, columns = np.nonzero(indices != HOLE)
    offsets = points[indices[rows, columns]] - queries[rows]
    best, best_slots = np.full(len(rows), np.inf), np.zeros(len(rows), np.int64)
    for slot, kernel_point in enumerate(kernel):
        distances = np.square(offsets - kernel_point).sum(axis=1)
        nearer = distances < best
        best[nearer], best_slots[nearer] = distances[nearer], slot
    slots[rows, columns] = best_slots
    return slots
