"""Weight and bias gradients by Hopper's kernels, forced, against NumPy float64."""

import functools

import gpu_dweight_calls
import gpu_problems
import jax
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

pytestmark = pytest.mark.usefixtures("hopper")

# B, H, W, C, O, (F_H, F_W), stride, padding, dilation, output size
DENSE = [
    (3, 16, 17, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (16, 17)),
    (2, 13, 9, 48, 72, (3, 2), (2, 3), (1, 1), (2, 1), (7, 3)),
    (2, 13, 9, 136, 200, (5, 4), (1, 2), (-2, 3), (1, 3), (5, 4)),
    (4, 9, 8, 128, 328, (1, 1), (2, 2), (0, 0), (1, 1), (5, 4)),
    (9, 7, 5, 8, 16, (2, 3), (3, 1), (2, 0), (3, 2), (2, 1)),
    (2, 40, 4, 256, 192, (3, 3), (1, 1), (1, 1), (1, 1), (40, 4)),
    (1, 1, 1, 64, 64, (5, 5), (1, 1), (2, 2), (1, 1), (1, 1)),
]
STRIPS = [
    (256, 16, 16, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (16, 16)),
    (131, 14, 14, 256, 264, (3, 3), (1, 1), (1, 1), (1, 1), (14, 14)),
    (128, 27, 28, 120, 56, (3, 3), (1, 1), (2, 2), (2, 2), (27, 28)),
    (64, 60, 41, 64, 64, (5, 3), (2, 1), (2, 0), (1, 1), (30, 39)),
]
# B, C, O, N, M, K, V (None: the column is the slot)
KNN = [
    (64, 64, 64, 50, 41, 9, None),
    (70, 72, 88, 33, 20, 5, None),
    (33, 128, 264, 33, 20, 9, None),
    (96, 256, 256, 12, 11, 25, None),
    (120, 128, 264, 23, 20, 9, None),
    (3, 8, 24, 50, 41, 9, None),
    (64, 64, 64, 50, 41, 9, 7),
    (70, 136, 88, 33, 20, 5, 200),
    (40, 512, 64, 33, 20, 5, 3),
    (1, 64, 64, 300, 257, 27, None),
    (20, 64, 40, 100, 150, 9, None),
    (3, 200, 328, 41, 137, 5, None),
    (20, 72, 88, 23, 45, 9, None),
    (1, 64, 64, 300, 257, 5, 27),
    (20, 136, 88, 33, 20, 5, 7),
]
DTYPES = [(F16, F16), (BF16, BF16), (BF16, F32), (F16, F32)]


dense_dweight = functools.partial(gpu_dweight_calls.dense_dweight, kernel="hopper")
knn_dweight = functools.partial(gpu_dweight_calls.knn_dweight, kernel="hopper")


def _dense(shape, dtype):
    problem = gpu_problems.dense(shape, dtype)
    return problem.x, problem.g, problem.window | {"kernel_size": problem.kernel_size}


def _knn(shape, dtype):
    problem = gpu_problems.knn(shape, dtype)
    return problem.x, problem.g, problem.indices, problem.slots, problem.num_slots


def _check_knn(shape, dtype, out_dtype, *, zero_empty_rows=False, **how):
    x, g, indices, slots, v = _knn(shape, dtype)
    options = {"num_slots": v, "zero_empty_rows": zero_empty_rows}
    found = knn_dweight(x, g, indices, slots, out_dtype=out_dtype, **options, **how)
    exact = oracle.knn_dweight(x, g, indices, slots, **options)
    bound = oracle.knn_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), indices, slots, **options)
    gpu_dweight_calls.check(found, exact, bound, out_dtype)


@pytest.mark.parametrize("shape", DENSE, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES, ids=str)
def test_dense(shape, dtype, out_dtype):
    x, g, window = _dense(shape, dtype)
    found = dense_dweight(x, g, out_dtype=out_dtype, **window)
    exact = oracle.dense_dweight(x, g, **window)
    bound = oracle.dense_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), **window)
    gpu_dweight_calls.check(found, exact, bound, out_dtype)


@pytest.mark.parametrize("shape", KNN, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES, ids=str)
def test_knn(shape, dtype, out_dtype):
    _check_knn(shape, dtype, out_dtype, zero_empty_rows=dtype == F16)


@pytest.mark.parametrize("slots", [None, 4], ids=["columns", "slots"])
@pytest.mark.parametrize("slices", [2, 3, 40])
def test_little_room_and_chains(slots, slices):
    # 25,600 positions: with room for few parts, a thread block's stretch is longer than a chain.
    _check_knn((64, 64, 64, 100, 400, 4, slots), F16, F32, slices=slices)


def test_no_bias():
    x, g, indices, slots, v = _knn(KNN[5], BF16)
    dw, db = knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=BF16, bias=False)
    exact, bound = (
        oracle.knn_dweight(a, b, indices, slots, num_slots=v)[0]
        for a, b in ((x, g), (abs(oracle.f64(x)), abs(oracle.f64(g))))
    )
    oracle.assert_within_ulp(dw, exact, 2 * bound, BF16)
    assert db.shape == (0,)


@pytest.mark.parametrize("batch", [1, 3, 20, 64])
@pytest.mark.parametrize("slots", [None, np.array([[0, 1], [0, 1]], np.int32)], ids=["columns", "slots"])
def test_holes_read_nothing(slots, batch):
    x, g = np.ones((batch, 3, 64), BF16), np.ones((batch, 2, 64), BF16)
    x[:, 0] = np.nan
    indices = np.array([[-1, 3], [1, 2]], np.int32)
    dw, db = knn_dweight(x, g, indices, slots, num_slots=2, out_dtype=F32, zero_empty_rows=True)
    np.testing.assert_array_equal(dw, np.full((2, 64, 64), batch))
    np.testing.assert_array_equal(db, np.full(64, batch))


@pytest.mark.parametrize("batch", [3, 64])
def test_a_table_of_holes(batch):
    x, g = np.ones((batch, 3, 64), BF16), np.ones((batch, 2, 64), BF16)
    indices, slots = np.full((2, 2), -1, np.int32), np.zeros((2, 2), np.int32)
    for given in None, slots:
        dw, db = knn_dweight(x, g, indices, given, num_slots=2, out_dtype=F32)
        np.testing.assert_array_equal(dw, np.zeros((2, 64, 64)))
        np.testing.assert_array_equal(db, np.full(64, 2 * batch))


@pytest.mark.parametrize("shape", STRIPS, ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_strips(shape, dtype):
    """So many positions that the taps of a kernel row share boxes of x; images are alike, one is the oracle's."""
    batch, *one = shape
    _, g, window = _dense((1, *one), dtype)
    rng = np.random.default_rng(0)
    x, g = (rng.integers(-2, 3, (1, *size)).astype(dtype) for size in (one[:3], g.shape[1:]))
    found = dense_dweight(np.repeat(x, batch, 0), np.repeat(g, batch, 0), out_dtype=F32, **window)
    for got, exact in zip(found, oracle.dense_dweight(x, g, **window), strict=True):
        np.testing.assert_array_equal(got, batch * exact)


def test_counts_of_taps():
    """The rim of a SAME window has fewer; padding beyond the image has none."""
    x, g = np.ones((2, 64, 64, 64), BF16), np.ones((2, 64, 64, 64), BF16)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "kernel_size": (3, 3)}
    dw, db = dense_dweight(x, g, out_dtype=F32, **window)
    side = np.array([63, 64, 63.0])
    np.testing.assert_array_equal(dw, np.broadcast_to(2 * np.outer(side, side)[..., None, None], dw.shape))
    np.testing.assert_array_equal(db, np.full(64, 2 * 4096))


@pytest.mark.parametrize("shape", [KNN[1], KNN[6], KNN[9]], ids=str)
def test_every_run_gives_the_same_bits(shape):
    x, g, indices, slots, v = _knn(shape, BF16)
    first = knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=F32)
    for _ in range(5):
        again = knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=F32)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batch", [3, 64])
def test_no_taps_are_zeros(batch):
    x, g = np.ones((batch, 0, 64), BF16), np.ones((batch, 2, 64), BF16)
    dw, db = knn_dweight(x, g, np.zeros((2, 3), np.int32), num_slots=3, out_dtype=F32)
    np.testing.assert_array_equal(dw, np.zeros((3, 64, 64)))
    np.testing.assert_array_equal(db, np.full(64, 2 * batch))


@pytest.mark.parametrize("channels", [60, 63])
def test_what_the_copy_engine_cannot_read_is_refused(channels):
    x, g, window = _dense((1, 4, 4, channels, 64, (1, 1), (1, 1), (0, 0), (1, 1), (4, 4)), BF16)
    with pytest.raises(jax.errors.JaxRuntimeError, match="does not take this call"):
        dense_dweight(x, g, out_dtype=BF16, **window)
