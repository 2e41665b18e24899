"""Random operands of a shape: several sets of them, so that one call does not find the last one's data in a cache."""

from __future__ import annotations

import functools
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
# An executable of many short calls brings its own start down in proportion.
_MOST_ON_GPU, _MOST_CALLS_ON_GPU, _LEAST_ON_GPU, _BYTES_ON_GPU = 16, 32, 4, 2**30
_POOL = 2**22  # random numbers, which large operands repeat


class Operands(NamedTuple):
    """Sets of (x, weight, g) and the neighbours, which stay, as ours and the peer want them."""

    sets: list[tuple[jax.Array, jax.Array, jax.Array]]
    ours: Any
    peer: Any


def neighbour_indices(shape: Knn, seed: int = 0) -> np.ndarray:
    """[rows, neighbours] int32: the nearest points of the first `rows` of `sources` random points."""
    points = np.random.default_rng(seed).random((shape.sources, shape.space))
    _, nearest = cKDTree(points).query(points[: shape.rows], shape.neighbours, workers=-1)
    return nearest.reshape(shape.rows, shape.neighbours).astype(np.int32)


def call_count(shape: Shape, itemsize: int) -> int:
    """How many calls an executable makes of short ones on a GPU, on some sets more than once."""
    return min(_MOST_CALLS_ON_GPU, max(_LEAST_ON_GPU, _BYTES_ON_GPU // moved_bytes(shape, itemsize)))


def set_count(shape: Shape, itemsize: int) -> int:
    """How many sets outgrow the caches, within reason."""
    if machine.size() == "gpu":
        return min(_MOST_ON_GPU, call_count(shape, itemsize))
    return min(_MANY, max(_FEW, math.ceil(_MORE_THAN_CACHES / moved_bytes(shape, itemsize))))


@functools.cache
def neighbours(shape: Shape) -> tuple[Any, Any]:
    """The table for ours and the index matrix for the peer; nothing for a grid."""
    if not isinstance(shape, Knn):
        return None, None
    indices = neighbour_indices(shape)
    return jkc.NeighborTable(indices, num_inputs=shape.sources), jnp.asarray(indices)


def abstract(shape: Shape, dtype: Any) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of one set (x, weight, g)."""
    x = (shape.batch, *shape.rows_in, shape.channels)
    weight = (*shape.slots, shape.channels, shape.outputs)
    g = (shape.batch, *shape.rows_out, shape.outputs)
    return jax.ShapeDtypeStruct(x, dtype), jax.ShapeDtypeStruct(weight, dtype), jax.ShapeDtypeStruct(g, dtype)


@functools.cache
def _pool(dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(_POOL, np.float32).astype(dtype)


def make(shape: Shape, dtype: Any, count: int | None = None) -> Operands:
    """Standard normal x and g, and weights that keep y of order one."""
    dtype = jnp.dtype(dtype)
    random = np.random.default_rng(1)
    fan_in = math.prod(shape.slots) * shape.channels

    def normal(like: jax.ShapeDtypeStruct) -> np.ndarray:
        numbers = _pool(dtype)[random.integers(_POOL // 2) :]
        return numbers[: like.size].reshape(like.shape) if like.size <= len(numbers) else np.resize(numbers, like.shape)

    def one_set() -> tuple[jax.Array, jax.Array, jax.Array]:
        x, weight, g = (normal(like) for like in abstract(shape, dtype))
        scaled = (weight.astype(np.float32) * np.float32(fan_in**-0.5)).astype(dtype)
        return jnp.asarray(x), jnp.asarray(scaled), jnp.asarray(g)

    sets = [one_set() for _ in range(set_count(shape, dtype.itemsize) if count is None else count)]
    return jax.block_until_ready(Operands(sets, *neighbours(shape)))
