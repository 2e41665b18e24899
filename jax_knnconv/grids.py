"""Tables of grids: a dense convolution of any rank, and the active cells of a sparse grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jax_knnconv._reading import as_array, as_integers, check_size
from jax_knnconv._table_orders import HOLE
from jax_knnconv._window import check_pads
from jax_knnconv.table import NeighborTable


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
        padding; 2**31 cells or more, of input or output.
    """
    grid = _read_sizes("shape", shape, None, 0)
    rank = len(grid)
    kernel = _read_sizes("kernel_shape", kernel_shape, rank, 1)
    strides = _read_sizes("stride", stride, rank, 1)
    dilations = _read_sizes("dilation", dilation, rank, 1)
    windows = [(f - 1) * d + 1 for f, d in zip(kernel, dilations, strict=True)]
    pads = _read_padding(padding, grid, windows, strides)

    num_inputs = check_size("shape, number of cells N", math.prod(grid))
    outputs = [
        max((n + low + high - window) // step + 1, 0)
        for n, (low, high), window, step in zip(grid, pads, windows, strides, strict=True)
    ]
    num_outputs = check_size("shape, number of output cells M", math.prod(outputs))
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
    indices = np.where(inside, indices, HOLE).reshape(num_outputs, math.prod(kernel))
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
    indices = np.full((num_cells, num_taps), HOLE, np.int64)
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
        indices[order, slot] = np.where(keys[found] == wanted, order[found], HOLE)
    return NeighborTable(indices, num_inputs=num_cells)


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
        if len(pair) != 2 or not all(
            isinstance(side, (int, np.integer)) and not isinstance(side, bool) for side in pair
        ):
            raise ValueError(f"padding: got {pad!r}, expected an integer or a (low, high) pair of them")
        pairs.append((int(pair[0]), int(pair[1])))
    check_pads(padding, pairs)
    return pairs
