"""Hopper's halo kernels of few channels, as shapes choose them, against NumPy float64."""

import functools

import gpu_calls as calls
import gpu_dweight_calls
import gpu_problems
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

pytestmark = pytest.mark.usefixtures("hopper")

# B, H, W, C, O, kernel, stride, padding, dilation, output size
LINES = [
    (3, 32, 32, 32, 32, (3, 3), (1, 1), (1, 1), (1, 1), (32, 32)),
    (2, 16, 16, 32, 64, (3, 3), (1, 1), (1, 1), (1, 1), (16, 16)),
    (5, 16, 8, 16, 40, (2, 3), (1, 1), (0, 1), (1, 1), (16, 8)),
    (1, 33, 21, 24, 8, (3, 2), (2, 1), (1, 2), (1, 2), (17, 23)),
    (2, 13, 15, 64, 32, (3, 3), (1, 1), (-1, 0), (2, 1), (7, 13)),
    (1, 16, 24, 8, 16, (1, 2), (1, 1), (0, 0), (1, 3), (16, 21)),
    (2, 16, 16, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (16, 16)),
    (1, 17, 18, 40, 72, (4, 2), (1, 1), (1, 0), (1, 2), (16, 16)),
    # A gradient of few rows, of which stages have less room than registers.
    (1, 32, 16, 16, 16, (3, 1), (1, 1), (1, 0), (1, 1), (32, 16)),
    (2, 17, 17, 16, 8, (2, 2), (1, 1), (0, 0), (1, 1), (16, 16)),
]
# Dinput with strides: more classes of pixels than one, some without a tap.
STRIDED = [
    (2, 33, 29, 24, 32, (3, 3), (2, 2), (1, 1), (1, 1), (17, 15)),
    (1, 31, 30, 8, 64, (2, 1), (3, 3), (0, 0), (1, 1), (10, 10)),
]
PAIRS = [
    (2, 41, 40, 3, 64, (7, 7), (2, 2), (3, 3), (1, 1), (21, 20)),
    (1, 30, 32, 1, 24, (2, 3), (1, 2), (0, 1), (2, 1), (28, 16)),
    (3, 17, 24, 4, 40, (3, 4), (2, 2), (1, 0), (1, 1), (9, 11)),
    (1, 19, 32, 2, 8, (3, 3), (3, 2), (-1, -2), (1, 1), (5, 13)),
    (2, 32, 32, 3, 32, (3, 3), (1, 1), (1, 1), (1, 1), (32, 32)),
    (1, 20, 34, 4, 72, (2, 8), (2, 1), (0, 3), (1, 1), (10, 32)),
]
# Weight gradients of up to 4 channels: ragged tiles, and what lies between the pixels of a stride.
PATCHES = [
    (2, 31, 33, 3, 32, (3, 3), (1, 1), (1, 1), (1, 1), (31, 33)),
    (3, 21, 19, 4, 64, (2, 3), (2, 1), (0, -1), (1, 2), (10, 13)),
    (1, 12, 40, 1, 64, (1, 2), (1, 3), (0, 2), (1, 1), (12, 14)),
    (2, 30, 31, 2, 8, (4, 2), (1, 1), (3, 1), (2, 1), (30, 32)),
]
# The same of up to 3 channels, from images that fill whole tiles.
PAIR_GRADIENTS = [
    (2, 32, 32, 3, 32, (3, 3), (1, 1), (1, 1), (1, 1), (32, 32)),
    (2, 32, 32, 3, 64, (7, 7), (2, 2), (3, 3), (1, 1), (16, 16)),
    (1, 35, 20, 2, 40, (5, 5), (2, 2), (1, 2), (1, 1), (16, 8)),
    (1, 32, 16, 3, 64, (5, 5), (2, 1), (2, 2), (1, 1), (16, 16)),
    (3, 12, 72, 1, 56, (4, 8), (1, 2), (1, 0), (2, 1), (8, 32)),
]
# Dinput of up to 4 channels: pixels of each stride in folds, some without a tap.
FOLDS = [
    (2, 32, 32, 3, 32, (3, 3), (1, 1), (1, 1), (1, 1), (32, 32)),
    (2, 37, 41, 3, 64, (7, 7), (2, 2), (3, 3), (1, 1), (19, 21)),
    (1, 30, 27, 4, 24, (5, 4), (1, 3), (2, 0), (1, 1), (30, 8)),
    (3, 19, 20, 1, 8, (2, 3), (3, 1), (0, -1), (2, 2), (6, 14)),
    (1, 9, 50, 2, 48, (1, 2), (4, 2), (0, 0), (1, 1), (3, 25)),
    (1, 16, 17, 4, 16, (3, 3), (3, 3), (0, 1), (1, 1), (5, 6)),
]
TYPES = [(F16, F16), (BF16, BF16), (F16, F32), (BF16, F32)]
HOPPER = {"kernel": "hopper"}


def _check(found, function, operands, out_dtype, **static):
    bound = function(*(abs(oracle.f64(operand)) for operand in operands), **static)
    oracle.assert_within_ulp(found, function(*operands, **static), calls.SUM_SLACK * bound, out_dtype)


@pytest.mark.parametrize("shape", LINES + PAIRS, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_forward(shape, dtype, out_dtype):
    for x_dtype in (dtype, F32) if shape in PAIRS else (dtype,):
        x, weight, bias, _, _, window = gpu_problems.dense(shape, dtype, x_dtype)
        y = calls.dense_forward(x, weight, bias, output_size=shape[-1], out_dtype=out_dtype, **HOPPER, **window)
        operands = (x.astype(dtype), weight, bias)
        _check(y, oracle.dense_forward, operands, out_dtype, output_size=shape[-1], **window)


@pytest.mark.parametrize("shape", LINES + STRIDED + FOLDS, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_dinput(shape, dtype, out_dtype):
    _, weight, _, g, _, window = gpu_problems.dense(shape, dtype)
    dx = calls.dense_dinput(g, weight, input_size=shape[1:3], out_dtype=out_dtype, **HOPPER, **window)
    _check(dx, oracle.dense_dinput, (g, weight), out_dtype, input_size=shape[1:3], **window)


@pytest.mark.parametrize("shape", LINES + PATCHES + PAIR_GRADIENTS, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_dweight(shape, dtype, out_dtype):
    for x_dtype in (dtype, F32) if shape[3] <= 4 else (dtype,):
        x, _, _, g, _, window = gpu_problems.dense(shape, dtype, x_dtype)
        window["kernel_size"] = shape[5]
        found = gpu_dweight_calls.dense_dweight(x, g, out_dtype=out_dtype, **HOPPER, **window)
        x = x.astype(dtype)
        bound = oracle.dense_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), **window)
        gpu_dweight_calls.check(found, oracle.dense_dweight(x, g, **window), bound, out_dtype)


@pytest.mark.parametrize("slices", [12, 300])
def test_room_for_slices(slices):
    # 15,360 positions: 4 slices keep chains short, each of which takes the room of two.
    shape = (30, 32, 16, 16, 32, (3, 3), (1, 1), (1, 1), (1, 1), (32, 16))
    x, _, _, g, _, window = gpu_problems.dense(shape, BF16)
    window["kernel_size"] = shape[5]
    found = gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, slices=slices, **HOPPER, **window)
    bound = oracle.dense_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), **window)
    gpu_dweight_calls.check(found, oracle.dense_dweight(x, g, **window), bound, F32)


@pytest.mark.parametrize("shape", [LINES[0], *PAIRS], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_infinity_reaches_its_window_alone(shape, dtype):
    """Depth that only fills a step up, channels and taps, multiplies zeros."""
    x, weight, _, _, _, window = gpu_problems.dense(shape, dtype)
    weight = np.abs(weight) + np.asarray(0.01, dtype)
    x = np.abs(x)
    x[:, x.shape[1] // 2, x.shape[2] // 2] = np.inf
    y = calls.dense_forward(x, weight, None, output_size=shape[-1], out_dtype=F32, **HOPPER, **window)
    exact = oracle.dense_forward(x, weight, None, output_size=shape[-1], **window)
    assert not np.isnan(y).any()
    np.testing.assert_array_equal(np.isinf(y), np.isinf(exact))


@pytest.mark.parametrize("shape", [LINES[0], *PATCHES, *PAIR_GRADIENTS], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_infinity_reaches_its_taps_alone(shape, dtype):
    x, _, _, g, _, window = gpu_problems.dense(shape, dtype)
    window["kernel_size"] = shape[5]
    x, g = np.abs(x), np.abs(g) + np.asarray(0.01, dtype)
    x[0, 0, 0] = np.inf  # in a corner, where most taps are outside the result
    dw, db = gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, **HOPPER, **window)
    exact, _ = oracle.dense_dweight(x, g, **window)
    assert not np.isnan(dw).any()
    assert np.isfinite(db).all()
    np.testing.assert_array_equal(np.isinf(dw), np.isinf(exact))


def test_ones_count_taps():  # case 6
    side = np.array([2] + [3] * 30 + [2])
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x, weight = np.ones((4, 32, 32, 8), BF16), np.ones((3, 3, 8, 16), BF16)
    y = calls.dense_forward(x, weight, None, output_size=(32, 32), out_dtype=F32, **HOPPER, **window)
    np.testing.assert_array_equal(y, np.broadcast_to((8 * side[:, None] * side)[..., None], y.shape))
    g = np.ones(y.shape, BF16)
    dx = calls.dense_dinput(g, weight, input_size=(32, 32), out_dtype=F32, **HOPPER, **window)
    np.testing.assert_array_equal(dx, np.broadcast_to((16 * side[:, None] * side)[..., None], dx.shape))
    dw, db = gpu_dweight_calls.dense_dweight(x, g, kernel_size=(3, 3), out_dtype=F32, **HOPPER, **window)
    count = np.array([31, 32, 31])
    np.testing.assert_array_equal(dw, np.broadcast_to((4 * count[:, None] * count)[..., None, None], dw.shape))
    np.testing.assert_array_equal(db, np.full(16, 4096))


def test_same_bits_every_time():  # case 11
    for shape in LINES[0], PAIRS[0]:
        x, weight, bias, g, _, window = gpu_problems.dense(shape, BF16)
        forward = functools.partial(calls.dense_forward, x, weight, bias, output_size=shape[-1], out_dtype=F32)
        first = forward(**HOPPER, **window).tobytes()
        assert all(forward(**HOPPER, **window).tobytes() == first for _ in range(5))
        # Rows keep their bits in whatever batch they sit.
        alone = calls.dense_forward(x[-1:], weight, bias, output_size=shape[-1], out_dtype=F32, **HOPPER, **window)
        assert alone.tobytes() == forward(**HOPPER, **window)[-1:].tobytes()
    for shape in LINES[0], *PAIR_GRADIENTS[:2]:
        x, _, _, g, _, window = gpu_problems.dense(shape, BF16)
        dweight = functools.partial(gpu_dweight_calls.dense_dweight, x, g, kernel_size=shape[5], out_dtype=F32)
        first = [value.tobytes() for value in dweight(**HOPPER, **window)]
        assert all([value.tobytes() for value in dweight(**HOPPER, **window)] == first for _ in range(5))
    for shape in FOLDS[:2]:
        _, weight, _, g, _, window = gpu_problems.dense(shape, BF16)
        static = {"input_size": shape[1:3], "out_dtype": F32} | HOPPER | window
        first = calls.dense_dinput(g, weight, **static)
        assert calls.dense_dinput(g, weight, **static).tobytes() == first.tobytes()
        assert calls.dense_dinput(g[-1:], weight, **static).tobytes() == first[-1:].tobytes()
