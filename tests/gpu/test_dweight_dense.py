"""Dense weight and bias gradients on the GPU against NumPy float64."""

import gpu_calls as calls
import gpu_dweight_calls
import gpu_problems
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

# B, H, W, C, O, (F_H, F_W), stride, padding, dilation, output size
SHAPES = [
    (3, 16, 16, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (16, 16)),
    (3, 16, 17, 32, 32, (3, 3), (1, 1), (1, 1), (1, 1), (16, 17)),
    (5, 20, 19, 3, 32, (3, 3), (1, 1), (1, 1), (1, 1), (20, 19)),
    (2, 23, 23, 3, 64, (7, 7), (2, 2), (3, 3), (1, 1), (12, 12)),
    (4, 9, 8, 128, 136, (1, 1), (2, 2), (0, 0), (1, 1), (5, 4)),
    (2, 13, 9, 8, 24, (3, 2), (2, 3), (1, 1), (2, 1), (7, 3)),
    (2, 13, 9, 24, 8, (5, 4), (1, 2), (-2, 3), (1, 3), (5, 4)),
    (9, 7, 5, 17, 33, (2, 3), (3, 1), (2, 0), (3, 2), (2, 1)),
    (2, 6, 6, 40, 10, (3, 3), (1, 1), (0, 0), (1, 1), (4, 4)),
    (2, 6, 6, 10, 40, (3, 3), (1, 1), (0, 0), (1, 1), (4, 4)),
    (1, 1, 1, 1, 1, (5, 5), (1, 1), (2, 2), (1, 1), (1, 1)),
]
TILES = [(rows, columns, 1) for rows in (32, 64, 128) for columns in (32, 64, 128)]
SCALAR_TILES = [(rows, columns, 0) for rows in (32, 128) for columns in (32, 64, 128)]
REGISTER_TILES = [(64, columns, 2) for columns in (32, 64, 128)]
CHANNELS = (1, 2, 3, 5, 7, 9, 17, 33, 63, 65)


def _problem(shape, x_dtype, g_dtype):
    problem = gpu_problems.dense(shape, g_dtype, x_dtype)
    return problem.x, problem.g, problem.window | {"kernel_size": problem.kernel_size}


def _check(shape, x_dtype, g_dtype, out_dtype, **how):
    x, g, window = _problem(shape, x_dtype, g_dtype)
    found = gpu_dweight_calls.dense_dweight(x, g, out_dtype=out_dtype, **window, **how)
    x = x.astype(g_dtype)
    exact = oracle.dense_dweight(x, g, **window)
    bound = oracle.dense_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), **window)
    gpu_dweight_calls.check(found, exact, bound, out_dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("x_dtype", "g_dtype", "out_dtype"), [(F16, F16, F16), (BF16, BF16, BF16), (F32, BF16, F32), (F32, F16, F16)]
)
def test_dweight(shape, x_dtype, g_dtype, out_dtype):
    _check(shape, x_dtype, g_dtype, out_dtype)


@pytest.mark.parametrize("tile", TILES + SCALAR_TILES + REGISTER_TILES, ids=str)
def test_every_tile(tile):
    for shape in SHAPES[1], SHAPES[5]:
        _check(shape, F16, F16, F32, tile=tile)


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile[0] != 64], ids=str)
@pytest.mark.parametrize("x_dtype", [F16, F32], ids=str)
def test_every_tile_whose_g_alone_is_copied(x_dtype, tile):
    """x has lines of no multiple of 16 bytes, or is rounded as it is read."""
    _check(
        (3, 9, 8, 20 if x_dtype == F16 else 24, 40, (3, 3), (1, 1), (1, 1), (1, 1), (9, 8)),
        x_dtype,
        F16,
        F32,
        tile=tile,
    )


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("c", CHANNELS)
def test_odd_channels(c, dtype):
    for o in CHANNELS[c % 2 :: 2]:
        _check((2, 7, 6, c, o, (3, 3), (1, 1), (1, 1), (1, 1), (7, 6)), dtype, dtype, dtype)


@pytest.mark.parametrize("slices", [2, 5, 40])
def test_slices_and_chains(slices):
    # 11,520 positions: with little room for slices, each is longer than a chain.
    _check((20, 24, 24, 16, 32, (3, 3), (1, 1), (1, 1), (1, 1), (24, 24)), BF16, BF16, F32, slices=slices)


def test_staging_does_not_change_bits():
    x, g, window = _problem(SHAPES[0], F16, F16)
    for rows, stagings in (128, (0, 1)), (64, (1, 2)):
        one, other = (
            gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, tile=(rows, 128, staging), **window)
            for staging in stagings
        )
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lead", [(3,), (1,)], ids=str)
def test_groups(lead):
    _, _, window = _problem(SHAPES[1], F16, F16)
    rng = np.random.default_rng(3)
    x, g = calls.normal(rng, (3, 2, 16, 17, 32), F16), calls.normal(rng, (3, 2, 16, 17, 32), F16)
    found = gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, lead=lead, **window)
    answers = [oracle.dense_dweight(x[i], g[i], **window) for i in range(3)]
    bounds = [oracle.dense_dweight(abs(oracle.f64(x[i])), abs(oracle.f64(g[i])), **window) for i in range(3)]
    if lead == (1,):
        exact, bound = ([sum(parts)[None] for parts in zip(*found, strict=True)] for found in (answers, bounds))
    else:
        exact, bound = ([np.stack(parts) for parts in zip(*found, strict=True)] for found in (answers, bounds))
    gpu_dweight_calls.check(found, exact, bound, F32)


def test_empty_batch():
    _, _, window = _problem(SHAPES[0], F16, F16)
    x, g = np.zeros((0, 16, 16, 64), F16), np.zeros((0, 16, 16, 64), F16)
    for value in gpu_dweight_calls.dense_dweight(x, g, out_dtype=BF16, **window):
        np.testing.assert_array_equal(oracle.f64(value), np.zeros(value.shape))


@pytest.mark.parametrize(("channels", "outputs"), [(64, 64), (32, 32), (3, 32)])
def test_sums_over_a_mapped_axis_without_entries_are_zeros(channels, outputs):
    _, _, window = _problem(SHAPES[0], F16, F16)
    x, g = np.zeros((0, 4, 16, 16, channels), F16), np.zeros((0, 4, 16, 16, outputs), F16)
    for value in gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, lead=(1,), **window):
        np.testing.assert_array_equal(value, np.zeros(value.shape))


def test_ones():
    """Counts of taps: 64 x 64 pixels give 4,096 (case 7), and the rim of a SAME window gives less."""
    x, g = np.ones((1, 64, 64, 4), BF16), np.ones((1, 64, 64, 4), BF16)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "kernel_size": (3, 3)}
    dw, db = gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, **window)
    side = np.array([63, 64, 63.0])
    np.testing.assert_array_equal(dw, np.broadcast_to(np.outer(side, side)[..., None, None], dw.shape))
    np.testing.assert_array_equal(db, np.full(4, 4096))


def test_overflow_is_infinite():
    """Sums beyond fp16 are rounded once, to infinity, not to NaN."""
    x, g = np.full((1, 4, 4, 8), 100, F16), np.full((1, 4, 4, 8), 100, F16)
    window = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "kernel_size": (1, 1)}
    dw, db = gpu_dweight_calls.dense_dweight(x, g, out_dtype=F16, **window)
    np.testing.assert_array_equal(oracle.f64(dw), np.full(dw.shape, np.inf))
    np.testing.assert_array_equal(db, np.full(8, 1600))
