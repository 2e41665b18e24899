"""Random operands of a shape: several sets of them, so that one call does not find the last one's data in a cache."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree

import jax_knnconv as jkc
from benchmarks import machine
from benchmarks.shapes import Knn, Shape, moved_bytes

_FEW, _MANY = 2, 8
_MORE_THAN_CACHES = 64 * 2**20  # bytes
# On a GPU each set is one call of an executable; more calls bring its own start down in proportion.
_ON_GPU = 16


class Operands(NamedTuple):
    """Sets of (x, weight, g) and the neighbours, which stay, as ours and the peer want them."""

    sets: list[tuple[jax.Array, jax.Array, jax.Array]]
    ours: Any
    peer: Any


def neighbour_indices(shape: Knn, seed: int = 0) -> np.ndarray:
    """[rows, neighbours] int32: the nearest points of the first `rows` of `sources` random points."""
    points = np.random.default_rng(seed).random((shape.sources, shape.space))
    _, nearest = cKDTree(points).query(points[: shape.rows], shape.neighbours)
    return nearest.reshape(shape.rows, shape.neighbours).astype(np.int32)


def set_count(shape: Shape, itemsize: int) -> int:
    """How many sets outgrow the caches, within reason."""
    if machine.size() == "gpu":
        return _ON_GPU
    return min(_MANY, max(_FEW, math.ceil(_MORE_THAN_CACHES / moved_bytes(shape, itemsize))))


def neighbours(shape: Shape) -> tuple[Any, Any]:
    """The table for ours and the index matrix for the peer; nothing for a grid."""
    if not isinstance(shape, Knn):
        return None, None
    indices = neighbour_indices(shape)
    return jkc.NeighborTable(indices, num_inputs=shape.sources), jnp.asarray(indices)


def make(shape: Shape, dtype: Any, count: int | None = None) -> Operands:
    """Standard normal x and g, and weights that keep y of order one."""
    dtype = jnp.dtype(dtype)
    random = np.random.default_rng(1)
    fan_in = math.prod(shape.slots) * shape.channels

    def normal(*dims: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(random.standard_normal(dims, np.float32) * np.float32(scale), dtype)

    sets = [
        (
            normal(shape.batch, *shape.rows_in, shape.channels),
            normal(*shape.slots, shape.channels, shape.outputs, scale=fan_in**-0.5),
            normal(shape.batch, *shape.rows_out, shape.outputs),
        )
        for _ in range(set_count(shape, dtype.itemsize) if count is None else count)
    ]
    return jax.block_until_ready(Operands(sets, *neighbours(shape)))
