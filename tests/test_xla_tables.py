"""Tables in pure JAX on the cases from the field: small inputs whose right values are known by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from xla_calls import DTYPES, UNIT, knn_passes

from jax_knnconv._xla import dense, knn


def column(values):
    """Numbers as [1, n, 1]: one batch row of single-channel nodes."""
    return np.asarray(values, np.float32).reshape(1, -1, 1)


def slot_weights(values):
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def check(results, y=None, dx=None, dw=None, db=None):
    for name, got, expected in zip(("y", "dx", "dw", "db"), results, (y, dx, dw, db), strict=True):
        if expected is not None:
            np.testing.assert_array_equal(oracle.f64(got).ravel(), expected, err_msg=name)


@pytest.mark.parametrize(("dtype", "expected"), [(jnp.float32, 40000), (jnp.float16, 40000), (jnp.bfloat16, 39936)])
def test_shared_points(dtype, expected):  # case 2
    rows, points = 400_000, 10
    by_source = np.arange(rows).reshape(-1, points).T.ravel().astype(np.int32)
    offsets = np.stack([np.arange(points + 1) * (rows // points), np.zeros(points + 1, int)], -1).astype(np.int32)
    g, weight = jnp.ones((1, rows, 1), dtype), jnp.ones((1, 8, 1), dtype)
    dinput = jax.jit(functools.partial(knn.dinput, num_inputs=points, out_dtype=dtype))
    dx = dinput(g, weight, offsets, by_source, np.zeros(rows, np.int32))
    np.testing.assert_array_equal(oracle.f64(dx), np.full((1, points, 8), expected))


def test_sums_beyond_2_24():  # case 2: a running fp32 sum of ones stops at 16,777,216
    rows = 20_000_000
    ones, weight = jnp.ones((1, rows, 1)), jnp.ones((1, 1, 1))
    offsets = np.array([[0, 0], [rows, 0]], np.int32)
    taps, zeros = jnp.arange(rows, dtype=jnp.int32), jnp.zeros(rows, jnp.int32)
    dinput = jax.jit(functools.partial(knn.dinput, num_inputs=1, out_dtype=jnp.float32))
    assert dinput(ones, weight, offsets, taps, zeros).item() == rows
    dtypes = {"with_bias": True, "group_rank": 0, "out_dtype": jnp.float32, "bias_dtype": jnp.float32}
    table = (zeros[:, None], None, None, None, None)
    dweight = jax.jit(functools.partial(knn.dweight, num_slots=1, zero_empty_rows=False, **dtypes))
    assert [grad.item() for grad in dweight(ones[:, :1], ones, *table)] == [rows, rows]
    image = ones.reshape(1, 5000, 4000, 1)
    dweight = jax.jit(functools.partial(dense.dweight, **UNIT, kernel_size=(1, 1), **dtypes))
    assert [grad.item() for grad in dweight(image, image)] == [rows, rows]


@pytest.mark.parametrize("dtype", DTYPES)
def test_holes(dtype):  # case 8
    check(
        knn_passes(column([1, 2, 3]), slot_weights([1, 1]), [[0, 3], [2, -1]], dtype=dtype), [1, 3], [1, 0, 1], [4, 0]
    )
    two = np.concatenate([column([1, 2, 3]), column([100, 200, 300])])
    check(knn_passes(two, slot_weights([1, 1]), [[0, 3], [2, -1]], dtype=dtype), [1, 3, 100, 300], [1, 0, 1] * 2)


@pytest.mark.parametrize("slots", [None, [[0, 1], [0, 1]]])
def test_nan_under_a_hole(slots):  # case 9
    x = column([np.nan, 2, 3])
    check(knn_passes(x, slot_weights([1, 1]), [[-1, -1], [1, 2]], slots), [0, 5], [0, 1, 1], [2, 3])


@pytest.mark.parametrize("slots", [None, [[0, 0, 1, 1], [0, 1, 1, 1]]])
def test_infinities_stay_in_their_rows(slots):
    x = column([np.inf, 2, 3, -np.inf])
    y, *_ = knn_passes(x, slot_weights([1] * 4 if slots is None else [1, 1]), [[0, 0, 1, 1], [1, 2, 3, 3]], slots)
    np.testing.assert_array_equal(y.ravel(), [np.inf, -np.inf])


@pytest.mark.parametrize("with_slots", [False, True])
def test_junk_indices(with_slots):  # case 10
    n = 37
    junk = [-(2**31), -50_000_000, -1, n, n + 1, 2**31 - 1]
    indices = np.array([[7, j, 20] for j in junk] + [[j, j, j] for j in junk])
    slots = np.array([[0, 1, 2]] * 6 + [[0, 0, 2]] * 6) if with_slots else None
    x = np.arange(1, n + 1)
    results = knn_passes(column(x), slot_weights([1, 10, 100]), indices, slots)
    dx = np.zeros(n)
    dx[7], dx[20] = 6, 600
    check(results, [8 + 2100] * 6 + [0] * 6, dx, [48, 0, 126])


def test_slots_out_of_range_are_holes():
    results = knn_passes(column([1, 2, 3]), slot_weights([1, 10]), [[0, 1, 2]], [[-1, 1, 2]])
    check(results, [20], [0, 10, 0], [0, 2])


def test_fewer_neighbours_than_columns():  # case 20
    check(knn_passes(column([3, 6, 9]), slot_weights([1] * 8), [[0, 1, 2, -1, -1, -1, -1, -1]]), [18])


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity(dtype):  # case 21
    x = jnp.arange(513 * 4).reshape(1, 513, 4) % 513
    y, *_ = knn_passes(x, np.eye(4)[None], np.arange(513)[:, None], dtype=dtype)
    np.testing.assert_array_equal(y, x.astype(dtype))


def test_shared_slots():  # case 23
    check(knn_passes(column([1, 10, 100]), slot_weights([2, 3]), [[0, 1, 2]], [[0, 0, 1]]), [322], [2, 2, 3], [11, 100])


@pytest.mark.parametrize("slots", [None, [[0, 1], [0, 1]]])
@pytest.mark.parametrize(("zero", "y", "db"), [(False, [5, 7], [2]), (True, [0, 7], [1])])
def test_all_hole_rows(slots, zero, y, db):  # case 24
    bias = np.array([5], np.float32)
    table = [[-1, -1], [0, 1]]
    check(knn_passes(column([1, 1]), slot_weights([1, 1]), table, slots, bias, zero_empty_rows=zero), y, db=db)


def test_a_row_of_slots_out_of_range_is_empty():
    bias = np.array([5], np.float32)
    table, slots = [[0, 1], [0, 1]], [[2, -1], [0, 1]]
    results = knn_passes(column([1, 1]), slot_weights([1, 1]), table, slots, bias, zero_empty_rows=True)
    check(results, [0, 7], [1, 1], [1, 1], [1])


@pytest.mark.parametrize("slots", [None, [[0, 1, 2]]])
def test_duplicate_neighbours(slots):  # case 25
    check(knn_passes(column([1, 5]), slot_weights([1, 10, 100]), [[1, 1, 1]], slots), [555], [0, 111], [5, 5, 5])


def test_duplicate_taps_in_one_cell():
    check(knn_passes(column([1, 5]), slot_weights([1, 10]), [[1, 1, 1, 0]], [[0, 0, 1, 1]]), [70], [10, 12], [10, 6])


def grid_table(height, width):
    """The 3x3 neighbourhoods of a grid, holes at the rim."""
    i, j = np.divmod(np.arange(height * width)[:, None], width)
    i, j = i + np.repeat([-1, 0, 1], 3), j + np.tile([-1, 0, 1], 3)
    return np.where((i >= 0) & (i < height) & (j >= 0) & (j < width), i * width + j, -1)


def test_table_of_a_grid_is_dense():  # case 26, in integers, which every sum gives exactly
    rng = np.random.default_rng(26)
    x, weight = (rng.integers(-4, 5, s).astype(np.float32) for s in ((2, 6, 6, 3), (3, 3, 3, 4)))
    g = rng.integers(-4, 5, (2, 6, 6, 4)).astype(np.float32)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    y = dense.forward(x, weight, None, **window, output_size=(6, 6), out_dtype=jnp.float32)
    dx = dense.dinput(g, weight, **window, input_size=(6, 6), out_dtype=jnp.float32)
    dtypes = {"out_dtype": jnp.float32, "bias_dtype": jnp.float32}
    dw, db = dense.dweight(x, g, **window, kernel_size=(3, 3), group_rank=0, with_bias=True, **dtypes)
    results = knn_passes(x.reshape(2, 36, 3), weight.reshape(9, 3, 4), grid_table(6, 6), g=g.reshape(2, 36, 4))
    check(results, *(oracle.f64(dense_result).ravel() for dense_result in (y, dx, dw, db)))
    np.testing.assert_array_equal(y, oracle.dense_forward(x, weight, **window, output_size=(6, 6)))


def test_submanifold():  # case 28
    cells = np.array([(0, 0), (0, 2), (1, 1), (2, 0), (3, 3)])
    number = np.full(16, -1)
    number[cells @ (4, 1)] = np.arange(5)
    grid = grid_table(4, 4)[cells @ (4, 1)]
    table = np.where(grid >= 0, number[grid], -1)
    check(knn_passes(column([1] * 5), slot_weights([1] * 9), table), [2, 2, 4, 2, 1], [2, 2, 4, 2, 1])


@pytest.mark.parametrize("with_slots", [False, True])
@pytest.mark.parametrize(("b", "m", "n", "k"), [(0, 3, 4, 2), (2, 0, 4, 2), (2, 3, 0, 2), (2, 3, 4, 0)])
def test_empty_tables(b, m, n, k, with_slots):  # case 18
    num_slots = 2 if with_slots else k
    indices = np.zeros((m, k), np.int32)
    slots = np.zeros((m, k), np.int32) if with_slots else None
    bias = np.full(5, 7, np.float32)
    y, dx, dw, db = knn_passes(np.ones((b, n, 3)), np.ones((num_slots, 3, 5)), indices, slots, bias)
    np.testing.assert_array_equal(y, np.full((b, m, 5), 7 + 3 * k if n else 7))
    assert dx.shape == (b, n, 3)
    assert dw.shape == (num_slots, 3, 5)
    assert not np.asarray(dw).any()
    np.testing.assert_array_equal(db, np.full(5, b * m))
