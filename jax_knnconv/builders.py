"""Builders of neighbour tables: from points in space, from dense grids, from the active cells of a sparse grid."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from scipy.spatial import cKDTree

from jax_knnconv.table import NeighborTable, as_array, as_integers, check_size

_HOLE = -1
# Distances that one step of resolving ties may hold at once: 32 MB of float64, and as much again for the indices.
_TIE_BLOCK = 2**22
# The search prunes by distances to boxes, with a rounding of their own; nothing nearer by this factor is pruned.
_CLEARLY = 1 + 1e-9


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
      TypeError: a traced or non-numeric array; k is no integer.
      ValueError: shapes that do not match, k < 1, max_distance < 0 or NaN, points that are not finite.
    """
    points, queries = _read_places(points, queries)
    k = check_size("k", k, minimum=1)
    max_distance = _read_distance("max_distance", max_distance)
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
    radius = _read_distance("radius", radius)
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


def grid_table(
    shape: int | Sequence[int],
    kernel_shape: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | tuple[int, int]] = "SAME",
    dilation: int | Sequence[int] = 1,
) -> NeighborTable:
    """The table of a dense convolution over a grid of any rank.

        indices[o, f] = the cell at o * stride + f * dilation - low padding, a hole outside the grid

    Rows (input cells, output cells) and slots (kernel cells) are numbered in C order, last dimension fastest, so that
    `knn_conv(x.reshape(..., N, C_in), weight.reshape(V, C_in, C_out), table)` equals
    `lax.conv_general_dilated` of the unflattened arrays with the same stride, padding and rhs_dilation.

    Args:
      shape: the grid's size in each dimension; N is their product.
      kernel_shape: the kernel's size in each dimension; K = V is their product.
      stride, dilation: one integer, or one a dimension.
      padding: "SAME", "SAME_LOWER", "VALID", one integer for every side, or one integer or (low, high) pair a
        dimension; negative padding crops.

    Raises:
      TypeError: a size that is no integer.
      ValueError: ranks that differ; a negative grid size; a kernel size, stride or dilation below 1; an unknown
        padding.
    """
    grid = _read_sizes("shape", shape, None, 0)
    rank = len(grid)
    kernel = _read_sizes("kernel_shape", kernel_shape, rank, 1)
    strides = _read_sizes("stride", stride, rank, 1)
    dilations = _read_sizes("dilation", dilation, rank, 1)
    windows = [(f - 1) * d + 1 for f, d in zip(kernel, dilations, strict=True)]
    pads = _read_padding(padding, grid, windows, strides)

    num_inputs = math.prod(grid)
    outputs = [
        max((n + low + high - window) // step + 1, 0)
        for n, (low, high), window, step in zip(grid, pads, windows, strides, strict=True)
    ]
    indices = np.zeros((*outputs, *kernel), np.int64)
    inside = np.ones(indices.shape, bool)
    for axis in range(rank):
        place = np.arange(outputs[axis])[:, None] * strides[axis] + np.arange(kernel[axis]) * dilations[axis]
        place -= pads[axis][0]
        along = [1] * (2 * rank)
        along[axis], along[rank + axis] = place.shape
        place = place.reshape(along)
        indices = indices * grid[axis] + place
        inside &= (place >= 0) & (place < grid[axis])
    indices = np.where(inside, indices, _HOLE).reshape(math.prod(outputs), math.prod(kernel))
    return NeighborTable(indices, num_inputs=num_inputs)


def submanifold_table(
    coordinates: Any, kernel_shape: int | Sequence[int], *, dilation: int | Sequence[int] = 1
) -> NeighborTable:
    """The table of a submanifold convolution: a dense one with SAME padding, restricted to the active cells of a grid.

        indices[m, f] = the active cell at coordinates[m] + f * dilation - (window - 1) // 2, else a hole

    with window = (kernel_shape - 1) * dilation + 1. Output row m is input row m, at coordinates[m].

    Args:
      coordinates: [N, D], any integer dtype, of either sign, in any order: the active cells. For a batch of sparse
        grids concatenated into one, make the sample's number one of the dimensions, with a kernel of size 1 there.
      kernel_shape: the kernel's size in each dimension; K = V is their product, slots in C order.
      dilation: one integer, or one a dimension.

    Raises:
      TypeError: traced or non-integer coordinates; a size that is no integer.
      ValueError: a wrong rank, a cell given twice, a kernel size or dilation below 1, coordinates so far apart that
        their bounding box holds 2**63 cells or more.
    """
    cells = as_integers("coordinates", as_array("coordinates", coordinates))
    if cells.ndim != 2:
        raise ValueError(f"coordinates: got shape {cells.shape}, expected [N, D]")
    num_cells, rank = cells.shape
    kernel = _read_sizes("kernel_shape", kernel_shape, rank, 1)
    dilations = _read_sizes("dilation", dilation, rank, 1)
    windows = [(f - 1) * d + 1 for f, d in zip(kernel, dilations, strict=True)]
    num_taps = math.prod(kernel)
    indices = np.full((num_cells, num_taps), _HOLE, np.int64)
    if not num_cells:
        return NeighborTable(indices, num_inputs=0)

    # A cell's number in a box with a rim wide enough for every window: a tap's offset then adds a constant to it.
    cells = cells if cells.dtype == np.uint64 else cells.astype(np.int64)
    lowest = [int(c) for c in cells.min(axis=0)]
    spans = [int(c) - low + window for c, low, window in zip(cells.max(axis=0), lowest, windows, strict=True)]
    if math.prod(spans) >= 2**63:
        raise ValueError(f"coordinates: got a box of {spans} cells (kernel included), expected fewer than 2**63 cells")
    steps = [math.prod(spans[axis + 1 :]) for axis in range(rank)]
    centers = [(window - 1) // 2 for window in windows]
    keys = np.zeros(num_cells, np.int64)
    for axis in range(rank):
        # The difference fits int64 even where the coordinate, being uint64, does not.
        keys += ((cells[:, axis] - cells.dtype.type(lowest[axis])).astype(np.int64) + centers[axis]) * steps[axis]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if twice.size:
        first, second = (int(order[twice[0] + i]) for i in (0, 1))
        raise ValueError(f"coordinates: got cell {cells[first].tolist()} twice, in rows {first} and {second}")

    for slot, taps in enumerate(itertools.product(*(range(f) for f in kernel))):
        offset = sum((f * d - c) * s for f, d, c, s in zip(taps, dilations, centers, steps, strict=True))
        wanted = keys + offset
        found = np.minimum(np.searchsorted(keys, wanted), num_cells - 1)
        indices[order, slot] = np.where(keys[found] == wanted, order[found], _HOLE)
    return NeighborTable(indices, num_inputs=num_cells)


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
    if array.dtype.kind in "bcOSUmM":
        raise TypeError(f"{name}: got dtype {array.dtype}, expected real numbers")
    if array.ndim < 2 or array.shape[-1] < 1:
        raise ValueError(f"{name}: got shape {array.shape}, expected [rows, D] with D >= 1, or groups of them in front")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got values that are not finite")
    return array


def _read_kernel_points(kernel_points: Any, dimensions: int) -> np.ndarray:
    kernel = _read_reals("kernel_points", kernel_points)
    if kernel.ndim != 2 or kernel.shape[1] != dimensions or not len(kernel):
        raise ValueError(f"kernel_points: got shape {kernel.shape}, expected [V, {dimensions}] with V >= 1")
    return kernel


def _read_distance(name: str, value: float) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: got {value!r} of type {type(value).__name__}, expected a number")
    if not value >= 0:
        raise ValueError(f"{name}: got {value}, expected a number of at least 0")
    return float(value)


def _widen(distance: float) -> float:
    """A bound that the search's own rounding cannot make miss a point at exactly this distance, 0 included."""
    return distance * _CLEARLY + 1e-150


def _nearest(points: np.ndarray, queries: np.ndarray, k: int, max_distance: float, workers: int) -> np.ndarray:
    """[M, k] indices by (distance, index), holes last."""
    num_points, num_queries = len(points), len(queries)
    nearest = np.full((num_queries, k), _HOLE, np.int64)
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
            nearest[rows[settled], : best.shape[1]] = np.where(best < num_points, best, _HOLE)[settled]
            unsettled.append(rows[~settled])
        pending = np.concatenate(unsettled)
        reach = min(2 * reach, num_points + 1)
    return nearest


def _nearest_kernel_points(
    points: np.ndarray, queries: np.ndarray, indices: np.ndarray, kernel: np.ndarray
) -> np.ndarray:
    """[M, K] kernel point nearest to each neighbour's offset from its query; 0 for holes."""
    slots = np.zeros(indices.shape, np.int64)
    rows, columns = np.nonzero(indices != _HOLE)
    offsets = points[indices[rows, columns]] - queries[rows]
    best, best_slots = np.full(len(rows), np.inf), np.zeros(len(rows), np.int64)
    for slot, kernel_point in enumerate(kernel):
        distances = np.square(offsets - kernel_point).sum(axis=1)
        nearer = distances < best
        best[nearer], best_slots[nearer] = distances[nearer], slot
    slots[rows, columns] = best_slots
    return slots


def _read_sizes(name: str, value: int | Sequence[int], rank: int | None, minimum: int) -> list[int]:
    """One integer a dimension; a single one stands for all of them."""
    sizes = list(value) if np.iterable(value) else [value] * (1 if rank is None else rank)
    if rank is not None and len(sizes) != rank:
        raise ValueError(f"{name}: got {len(sizes)} sizes {tuple(sizes)}, expected {rank}, one a dimension")
    return [check_size(name, size, minimum) for size in sizes]


def _read_padding(padding: Any, grid: list[int], windows: list[int], strides: list[int]) -> list[tuple[int, int]]:
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "SAME_LOWER", "VALID"):
            raise ValueError(f"padding: got {padding!r}, expected 'SAME', 'SAME_LOWER', 'VALID' or explicit pads")
        return [(int(low), int(high)) for low, high in lax.padtype_to_pads(grid, windows, strides, padding.upper())]
    pads = list(padding) if np.iterable(padding) else [padding] * len(grid)
    if len(pads) != len(grid):
        raise ValueError(f"padding: got {len(pads)} entries {padding!r}, expected {len(grid)}, one a dimension")
    pairs = []
    for pad in pads:
        pair = tuple(pad) if np.iterable(pad) else (pad, pad)
        if len(pair) != 2 or not all(isinstance(side, (int, np.integer)) for side in pair):
            raise ValueError(f"padding: got {pad!r}, expected an integer or a (low, high) pair of them")
        pairs.append((int(pair[0]), int(pair[1])))
    return pairs
