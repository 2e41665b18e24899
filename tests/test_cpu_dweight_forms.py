"""The forms of a weight gradient: output lines, pairs of rows, taps that lie anywhere, each at its borders.

Lines serve wide images and few channels; pairs bfloat16, where the processor has the instruction.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from dweight_calls import DTYPES, dense_dweight, dense_oracle, knn_dweight, knn_oracle
from handler_calls import assert_close, random, random_table

from jax_knnconv._ffi import load_backend

pytestmark = pytest.mark.skipif(load_backend("cpu").module is None, reason="the CPU module is not built")

# (image, channels, kernel, stride, padding, dilation)
WINDOWS = {
    "odd lines end in half a pair": ((9, 33), 20, (3, 3), 1, 1, 1),
    "several blocks": ((40, 40), 24, (3, 3), 1, 1, 1),
    "more channels than a tile takes": ((5, 60), 150, (3, 3), 1, 1, 1),
    "slots apart": ((12, 48), 17, (3, 3), 1, 2, 2),
    "slots apart and more channels than a tile takes": ((12, 70), 100, (2, 3), 1, 2, 2),
    "few channels, wide kernel": ((23, 37), 3, (7, 7), 2, 3, 1),
    "few channels, narrow image": ((20, 9), 3, (3, 3), 1, 1, 1),
    "lines too short to pair": ((50, 5), 3, (3, 3), 1, 1, 1),
    "narrow image": ((14, 7), 40, (3, 3), 1, 1, 1),
    "a kernel wider than the image": ((6, 4), 2, (1, 9), 1, 4, 1),
    "lines past the image": ((3, 20), 5, (1, 1), 1, 3, 1),
}


def window(name):
    size, channels, kernel, stride, padding, dilation = WINDOWS[name]
    low = (padding, padding if kernel != (1, 1) else 0)
    out = [(size[d] + 2 * low[d] - (kernel[d] - 1) * dilation - 1) // stride + 1 for d in range(2)]
    return size, out, channels, kernel, (stride, stride), low, (dilation, dilation)


@pytest.mark.parametrize("dtype", [*sorted(DTYPES), "float32 as bfloat16"])
@pytest.mark.parametrize("name", WINDOWS)
def test_dense(name, dtype):
    size, out, channels, kernel, stride, padding, dilation = window(name)
    rng = np.random.default_rng(0)
    compute = DTYPES.get(dtype, jnp.bfloat16)
    x, g = random(rng, (2, *size, channels), compute), random(rng, (2, *out, 35), compute)
    read = x.astype(np.float32) if dtype == "float32 as bfloat16" else x
    dw, db = dense_dweight(read, g, kernel, stride=stride, padding=padding, dilation=dilation, dtype=jnp.float32)
    want_dw, size_dw, want_db, size_db = dense_oracle(x, g, kernel, stride, padding, dilation)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("name", WINDOWS)
def test_an_infinite_pixel_reaches_its_slots_and_no_other(name, dtype):
    """Neither the neighbour that shares a pair with it nor a tile's filling turns it into NaN."""
    size, out, channels, kernel, stride, padding, dilation = window(name)
    g = np.ones((1, *out, 2), DTYPES[dtype])
    for pixel in ((0, 0), (size[0] // 2, size[1] - 1), (size[0] // 2, size[1] // 2)):
        x = np.zeros((1, *size, channels), DTYPES[dtype])
        x[0][pixel] = 1
        reached = dense_oracle(x, g, kernel, stride, padding, dilation)[0] > 0
        x[0][pixel] = np.inf
        dw, _ = dense_dweight(x, g, kernel, stride=stride, padding=padding, dilation=dilation, dtype=jnp.float32)
        np.testing.assert_array_equal(dw, np.where(reached, np.inf, 0))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("channels", [3, 8, 9, 130])
@pytest.mark.parametrize("rows", [1, 257, 600])
def test_table(dtype, channels, rows):
    rng = np.random.default_rng(1)
    x, g = random(rng, (2, 70, channels), DTYPES[dtype]), random(rng, (2, rows, 35), DTYPES[dtype])
    indices = random_table(rng, rows, 20, 70)
    indices[: rows // 2, 4] = -1  # whole pairs of holes
    indices[::3] = -1
    dw, db = knn_dweight(x, g, indices, dtype=jnp.float32, zero_empty_rows=1)
    slots = np.broadcast_to(np.arange(20), indices.shape)
    want_dw, size_dw, want_db, size_db = knn_oracle(x, g, indices, slots, 20, zero_empty_rows=1)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_rows_that_do_not_count_do_not_reach_the_bias(dtype):
    g = np.ones((1, 5, 3), DTYPES[dtype])
    g[0, 1] = np.nan
    indices = np.array([[0], [-1], [1], [0], [1]], np.int32)
    _, db = knn_dweight(np.ones((1, 2, 4), DTYPES[dtype]), g, indices, zero_empty_rows=1)
    np.testing.assert_array_equal(db, np.array([4, 4, 4], DTYPES[dtype]))
