"""Random problems of given shapes, for the tests of several families of kernels."""

from typing import NamedTuple

import gpu_calls as calls
import numpy as np
import oracle
from gpu_calls import F32

# B, C, O, N, M, K, V (None: the column is the slot)
KNN_SHAPES = [
    (1, 64, 64, 300, 257, 27, None),
    (1, 64, 32, 300, 257, 27, 40),
    (3, 16, 24, 50, 41, 9, None),
    (20, 8, 200, 50, 41, 9, 5),
    (40, 32, 64, 60, 33, 5, 200),
    (64, 64, 64, 33, 20, 9, None),
    (128, 96, 160, 40, 17, 9, 9),
    (130, 40, 72, 25, 19, 40, None),
    (130, 40, 72, 25, 19, 40, 7),
    (512, 64, 72, 12, 7, 3, None),
    (7, 3, 96, 100, 30, 121, None),
    (7, 3, 5, 100, 30, 50, 300),
    (1, 33, 65, 20, 5, 3, 2),
    (9, 1, 1, 20, 700, 3, None),
]

# B, H, W, C, O, kernel, stride, low pads, dilation, output size
DENSE_SHAPES = [
    (2, 9, 7, 16, 24, (3, 3), (1, 1), (1, 1), (1, 1), (9, 7)),
    (3, 8, 8, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (8, 8)),
    (2, 16, 15, 3, 64, (7, 7), (2, 2), (3, 3), (1, 1), (8, 8)),
    (2, 11, 13, 32, 8, (3, 2), (2, 3), (1, 0), (2, 1), (5, 5)),
    (1, 20, 1, 5, 7, (5, 1), (3, 1), (2, 0), (3, 1), (4, 1)),
    (5, 6, 6, 136, 96, (1, 1), (1, 1), (0, 0), (1, 1), (6, 6)),
    (1, 14, 14, 8, 200, (2, 2), (2, 2), (-1, -2), (1, 1), (6, 6)),
    (2, 7, 9, 33, 65, (3, 3), (2, 1), (1, 1), (1, 2), (4, 7)),
    (1, 9, 9, 24, 16, (2, 2), (4, 3), (0, 0), (1, 1), (2, 3)),
    (1, 6, 40, 48, 160, (6, 6), (1, 1), (5, 5), (1, 1), (11, 45)),
    (3, 9, 7, 64, 72, (1, 1), (2, 2), (1, 1), (1, 1), (6, 5)),  # pixels of x without taps, beside a border of g
]


class Knn(NamedTuple):
    """Operands of all passes over one table."""

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    g: np.ndarray
    indices: np.ndarray
    slots: np.ndarray | None

    @property
    def num_slots(self):
        return len(self.weight)


def knn(shape, dtype, x_dtype=None):
    batch, c, o, n, m, k, v = shape
    rng = np.random.default_rng(0)
    indices, slots = calls.random_table(rng, m, k, n, v)
    x = calls.normal(rng, (batch, n, c), x_dtype or dtype)
    weight = calls.normal(rng, (k if v is None else v, c, o), dtype, (k * c) ** -0.5)
    return Knn(x, weight, calls.normal(rng, (o,), F32), calls.normal(rng, (batch, m, o), dtype), indices, slots)


class Dense(NamedTuple):
    """Operands of all passes over one window; `window` is what every pass takes by keyword."""

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    g: np.ndarray
    sizes: tuple[int, int]  # of the result
    window: dict

    @property
    def kernel_size(self):
        return self.weight.shape[:2]


def dense(shape, dtype, x_dtype=None):
    batch, height, width, c, o, kernel, stride, padding, dilation, sizes = shape
    rng = np.random.default_rng(0)
    x = calls.normal(rng, (batch, height, width, c), x_dtype or dtype)
    weight = calls.normal(rng, (*kernel, c, o), dtype, (kernel[0] * kernel[1] * c) ** -0.5)
    bias, g = calls.normal(rng, (o,), F32), calls.normal(rng, (batch, *sizes, o), dtype)
    return Dense(x, weight, bias, g, sizes, {"stride": stride, "padding": padding, "dilation": dilation})


def bound(function, *operands, **static):
    """A pass of the oracle over absolute values: what the slack of its sums is measured by."""
    return function(*(None if value is None else abs(oracle.f64(value)) for value in operands), **static)


def hub_order(owners, slots, num_inputs):
    """The source order of taps (row i -> source owners[i], slot slots[i])."""
    order = np.lexsort((np.arange(len(owners)), slots, owners))
    low = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=num_inputs))])
    offsets = np.stack([low, np.zeros_like(low)], -1).astype(np.int32)
    return offsets, order.astype(np.int32), np.asarray(slots)[order].astype(np.int32)
