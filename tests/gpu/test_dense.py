"""Dense forward and dinput on the GPU against NumPy float64."""

import functools

import gpu_calls as calls
import gpu_problems
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32
from gpu_problems import DENSE_SHAPES

TILES = [(rows, columns, -1) for rows in (16, 64, 128) for columns in (32, 64, 128)]


def _check_forward(shape, dtype, x_dtype, out_dtype, tile=None):
    x, weight, bias, _, sizes, window = gpu_problems.dense(shape, dtype)
    x = x if x_dtype == dtype else calls.normal(np.random.default_rng(1), x.shape, x_dtype)
    y = calls.dense_forward(x, weight, bias, output_size=sizes, out_dtype=out_dtype, tile=tile, **window)
    x = x.astype(dtype)
    exact = oracle.dense_forward(x, weight, bias, output_size=sizes, **window)
    bound = gpu_problems.bound(oracle.dense_forward, x, weight, bias, output_size=sizes, **window)
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)


def _check_dinput(shape, dtype, out_dtype, tile=None):
    x, weight, _, g, _, window = gpu_problems.dense(shape, dtype)
    size = x.shape[1:3]
    dx = calls.dense_dinput(g, weight, input_size=size, out_dtype=out_dtype, tile=tile, **window)
    exact = oracle.dense_dinput(g, weight, input_size=size, **window)
    bound = gpu_problems.bound(oracle.dense_dinput, g, weight, input_size=size, **window)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, out_dtype)


@pytest.mark.parametrize("shape", DENSE_SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "x_dtype", "out_dtype"), [(F16, F16, F16), (BF16, BF16, BF16), (BF16, F32, F32), (F16, F32, F16)]
)
def test_forward(shape, dtype, x_dtype, out_dtype):
    _check_forward(shape, dtype, x_dtype, out_dtype)


@pytest.mark.parametrize("shape", DENSE_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), [(F16, F16), (BF16, F32)])
def test_dinput(shape, dtype, out_dtype):
    _check_dinput(shape, dtype, out_dtype)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(tile):
    for shape in DENSE_SHAPES[1], DENSE_SHAPES[6], DENSE_SHAPES[7]:
        _check_forward(shape, BF16, BF16, BF16, tile)
        _check_dinput(shape, F16, F16, tile)


@pytest.mark.parametrize("shape", [s for s in DENSE_SHAPES if s[3] % 8 == 0 and s[4] % 8 == 0], ids=str)
def test_staging_does_not_change_a_bit(shape):
    x, weight, bias, g, sizes, window = gpu_problems.dense(shape, BF16)
    forward = functools.partial(calls.dense_forward, x, weight, bias, output_size=sizes, out_dtype=F32, **window)
    dinput = functools.partial(calls.dense_dinput, g, weight, input_size=x.shape[1:3], out_dtype=F32, **window)
    for run in forward, dinput:
        np.testing.assert_array_equal(run(tile=(64, 64, 1)), run(tile=(64, 64, 0)))


def test_float32_input_is_rounded_as_read():
    x, weight, bias, _, sizes, window = gpu_problems.dense(DENSE_SHAPES[1], F16)
    wide = calls.normal(np.random.default_rng(2), x.shape, F32) * 3
    wide[0, 0, 0, :3] = 70000, np.nan, 1e-9
    run = functools.partial(calls.dense_forward, output_size=sizes, out_dtype=F32, **window)
    with np.errstate(over="ignore"):
        narrow = wide.astype(F16)
    np.testing.assert_array_equal(run(wide, weight, bias), run(narrow, weight, bias))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_ones_count_taps(dtype):  # case 6
    x, weight = np.ones((40, 32, 32, 8), dtype), np.ones((3, 3, 8, 8), dtype)
    side = np.array([2] + [3] * 30 + [2])
    expected = np.broadcast_to((8 * side[:, None] * side)[..., None], x.shape)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    for tile in (None, *TILES):
        y = calls.dense_forward(x, weight, None, output_size=(32, 32), out_dtype=dtype, tile=tile, **window)
        np.testing.assert_array_equal(y.astype(np.float32), expected)


def test_sums_are_fp32():  # case 7
    weight = np.repeat([100, -100], 32)[None, None, :, None] * np.ones((3, 3, 1, 1))
    window = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    x = np.full((1, 3, 3, 64), 100, F16)
    assert calls.dense_forward(x, weight.astype(F16), None, output_size=(1, 1), out_dtype=F16, **window) == 0
    ones = np.full((1, 1, 16, 1), 100, F16)
    y = calls.dense_forward(x[:, :1, :1, :16], ones, None, output_size=(1, 1), out_dtype=F16, **window)
    assert y == np.inf


def test_groups_share_or_own():
    rng = np.random.default_rng(3)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x = calls.normal(rng, (2, 1, 4, 5, 6, 8), F16)  # groups 2 and 1, batch 4
    weight = calls.normal(rng, (1, 3, 3, 3, 8, 16), F16)
    bias = calls.normal(rng, (2, 3, 16), F32)
    y = calls.dense_forward(x, weight, bias, output_size=(5, 6), out_dtype=F32, lead=(2, 3), **window)
    g = calls.normal(rng, (1, 3, 4, 5, 6, 16), F16)
    dx = calls.dense_dinput(g, weight, input_size=(5, 6), out_dtype=F32, lead=(1, 3), **window)
    for i, j in np.ndindex(2, 3):
        exact = oracle.dense_forward(x[i, 0], weight[0, j], bias[i, j], output_size=(5, 6), **window)
        np.testing.assert_allclose(y[i, j], exact, rtol=0, atol=2e-4)
        exact = oracle.dense_dinput(g[0, j], weight[0, j], input_size=(5, 6), **window)
        np.testing.assert_allclose(dx[0, j], exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("shape", [(0, 8, 8, 3, 4), (2, 8, 8, 0, 4), (2, 8, 8, 3, 0), (2, 0, 8, 3, 4)], ids=str)
def test_empty(shape):  # case 18
    batch, height, width, c, o = shape
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x, weight, bias = np.ones((batch, height, width, c), F16), np.ones((3, 3, c, o), F16), np.full((o,), 5, F32)
    y = calls.dense_forward(x, weight, bias, output_size=(height, width), out_dtype=F16, **window)
    exact = oracle.dense_forward(x, weight, bias, output_size=(height, width), **window)
    np.testing.assert_array_equal(y, exact)
    g = np.ones((batch, height, width, o), F16)
    dx = calls.dense_dinput(g, weight, input_size=(height, width), out_dtype=F16, **window)
    np.testing.assert_array_equal(dx, oracle.dense_dinput(g, weight, input_size=(height, width), **window))


def test_same_bits_every_time():  # case 11
    x, weight, bias, g, sizes, window = gpu_problems.dense(DENSE_SHAPES[9], BF16)
    first = None
    for _ in range(20):
        y = calls.dense_forward(x, weight, bias, output_size=sizes, out_dtype=F32, **window)
        dx = calls.dense_dinput(g, weight, input_size=x.shape[1:3], out_dtype=F32, **window)
        first = first or (y.tobytes(), dx.tobytes())
        assert first == (y.tobytes(), dx.tobytes())
