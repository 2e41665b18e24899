"""KNN forward and dinput on the GPU against NumPy float64."""

import functools

import gpu_calls as calls
import gpu_problems
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32
from gpu_problems import KNN_SHAPES

TILES = [(rows, columns, -1) for rows in (16, 64, 128) for columns in (32, 64, 128)]


def _check_forward(shape, dtype, x_dtype, out_dtype, zero_empty_rows=False, tile=None):
    x, weight, bias, _, indices, slots = gpu_problems.knn(shape, dtype, x_dtype)
    options = {"zero_empty_rows": zero_empty_rows}
    y = calls.knn_forward(x, weight, indices, slots, bias, out_dtype=out_dtype, tile=tile, **options)
    x = x.astype(dtype)
    exact = oracle.knn_forward(x, weight, indices, slots, bias, **options)
    bound = oracle.knn_forward(abs(oracle.f64(x)), abs(oracle.f64(weight)), indices, slots, abs(bias))
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)


def _check_dinput(shape, dtype, out_dtype, tile=None):
    x, weight, _, g, indices, slots = gpu_problems.knn(shape, dtype)
    n = x.shape[1]
    orders = calls.source_order(indices, slots, n, len(weight))
    dx = calls.knn_dinput(g, weight, orders, num_inputs=n, out_dtype=out_dtype, tile=tile)
    exact = oracle.knn_dinput(g, weight, indices, slots, num_inputs=n)
    bound = oracle.knn_dinput(abs(oracle.f64(g)), abs(oracle.f64(weight)), indices, slots, num_inputs=n)
    cells = dtype == BF16 and len(x) <= 8  # summed before the product, in two parts of 8 bits
    oracle.assert_within_ulp(dx, exact, (calls.CELL_SLACK if cells else calls.SUM_SLACK) * bound, out_dtype)


@pytest.mark.parametrize("shape", KNN_SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "x_dtype", "out_dtype"), [(F16, F16, F16), (BF16, BF16, BF16), (BF16, F32, F32), (F16, F32, F16)]
)
def test_forward(shape, dtype, x_dtype, out_dtype):
    _check_forward(shape, dtype, x_dtype, out_dtype, zero_empty_rows=dtype == F16)


@pytest.mark.parametrize("shape", KNN_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), [(F16, F16), (BF16, F32)])
def test_dinput(shape, dtype, out_dtype):
    _check_dinput(shape, dtype, out_dtype)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(tile):
    for shape in KNN_SHAPES[1], KNN_SHAPES[3], KNN_SHAPES[8]:
        _check_forward(shape, BF16, BF16, BF16, tile=tile)
        _check_dinput(shape, F16, F16, tile=tile)
        _check_dinput(shape, BF16, F32, tile=tile)


@pytest.mark.parametrize("shape", [s for s in KNN_SHAPES if s[1] % 8 == 0 and s[2] % 8 == 0], ids=str)
def test_staging_does_not_change_a_bit(shape):
    x, weight, bias, g, indices, slots = gpu_problems.knn(shape, F16)
    orders = calls.source_order(indices, slots, x.shape[1], len(weight))
    forward = functools.partial(calls.knn_forward, x, weight, indices, slots, bias, out_dtype=F32)
    dinput = functools.partial(calls.knn_dinput, g, weight, orders, num_inputs=x.shape[1], out_dtype=F32)
    for run in forward, dinput:
        expected = run(tile=(64, 64, 1))
        for staging in (0, 2):
            np.testing.assert_array_equal(run(tile=(64, 64, staging)), expected)


def test_nan_under_a_hole():  # cases 8, 9, 24
    x = np.array([np.nan, 2, 3], F16).reshape(1, 3, 1)
    one, indices = np.ones((2, 1, 1), F16), np.array([[-1, -1], [1, 2]], np.int32)
    run = functools.partial(calls.knn_forward, x, one, indices, out_dtype=F32)
    assert run().ravel().tolist() == [0, 5]
    five = np.array([5], F32)
    assert run(bias=five).ravel().tolist() == [5, 10]
    assert run(bias=five, zero_empty_rows=True).ravel().tolist() == [0, 10]
    batched = np.array([[1, 2, 3], [10, 20, 30]], F16)[..., None]
    y = calls.knn_forward(batched, one, np.array([[0, 3], [2, -1]], np.int32), out_dtype=F32)
    assert y[..., 0].tolist() == [[1, 3], [10, 30]]


def test_infinities_stay_in_their_cell():
    """Two taps of one source and slot are added before the product; an infinite sum must not turn into NaN there."""
    m, n, c = 40, 3, 16
    indices = (np.arange(m) % n).astype(np.int32)[:, None]
    weight, g = np.ones((1, c, c), BF16), np.ones((1, m, c), BF16)
    g[0, 0, 2], g[0, 1, 3], g[0, 4, 3], g[0, 2, 5] = np.inf, np.inf, -np.inf, np.nan
    dx = calls.knn_dinput(g, weight, calls.source_order(indices, None, n, 1), num_inputs=n, out_dtype=F32)
    np.testing.assert_array_equal(dx[0, 0], np.full(c, np.inf))
    assert np.isnan(dx[0, 1:]).all()


def test_shared_slots_and_repeated_neighbours():  # cases 23, 25
    x = np.array([1, 10, 100], F16).reshape(1, 3, 1)
    weight = np.array([2, 3], F16).reshape(2, 1, 1)
    indices, slots = np.array([[0, 1, 2]], np.int32), np.array([[0, 0, 1]], np.int32)
    assert calls.knn_forward(x, weight, indices, slots, out_dtype=F32).item() == 322
    x, indices = np.array([1, 5], F16).reshape(1, 2, 1), np.array([[1, 1, 1]], np.int32)
    weight = np.array([1, 10, 100], F16).reshape(3, 1, 1)
    assert calls.knn_forward(x, weight, indices, out_dtype=F32).item() == 555
    orders = calls.source_order(indices, None, 2, 3)
    dx = calls.knn_dinput(np.ones((1, 1, 1), F16), weight, orders, num_inputs=2, out_dtype=F32)
    assert dx.ravel().tolist() == [0, 111]


def test_identity_of_many_nodes():  # cases 21, 33: more nodes than a grid dimension of old kernels
    n = 200_003
    x = (np.arange(n * 8) % 513).reshape(1, n, 8).astype(F16)
    weight, indices = np.eye(8, dtype=F16)[None], np.arange(n, dtype=np.int32)[:, None]
    y = calls.knn_forward(x, weight, indices, out_dtype=F16)
    np.testing.assert_array_equal(y, x)
    offsets = np.stack([np.arange(n + 1), np.zeros(n + 1)], -1).astype(np.int32)
    orders = offsets, np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    np.testing.assert_array_equal(calls.knn_dinput(x, weight, orders, num_inputs=n, out_dtype=F16), x)


@pytest.mark.parametrize(("batch", "nodes"), [(1, 13), (3, 13), (20, 13), (3, 4100)])  # of many, a kernel asks each
@pytest.mark.parametrize("out_dtype", [F32, BF16], ids=str)
def test_hubs(batch, nodes, out_dtype):
    """Lists of 255 to 5000 taps between short ones, so that units begin and end at, in and between hubs."""
    rng = np.random.default_rng(batch)
    counts = rng.integers(0, 3, nodes)
    lengths = [3, 256, 5000, 257, 0, 1, 255, 700, 256, 512, 1024, 2, 300]
    counts[np.linspace(0, nodes - 1, len(lengths)).astype(int)] = lengths
    owners, slots = np.repeat(np.arange(len(counts)), counts), rng.integers(0, 11, counts.sum())
    shuffled = rng.permutation(len(owners))
    owners, slots = owners[shuffled], slots[shuffled]
    c, o = 40, 72
    g = calls.normal(rng, (batch, len(owners), o), BF16)
    weight = calls.normal(rng, (11, c, o), BF16, 0.1)
    orders = gpu_problems.hub_order(owners, slots, len(counts))
    dx = calls.knn_dinput(g, weight, orders, num_inputs=len(counts), out_dtype=out_dtype)
    exact, bound = np.zeros((2, batch, len(counts), c))
    for slot in range(11):
        taps = slots == slot
        for target, transform in (exact, np.asarray), (bound, np.abs):
            products = transform(oracle.f64(g[:, taps])) @ transform(oracle.f64(weight[slot])).T
            np.add.at(target, (slice(None), owners[taps]), products)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, out_dtype)


def test_shared_points_are_counted_exactly():  # case 2
    m = 400_000
    orders = gpu_problems.hub_order(np.arange(m) % 10, np.zeros(m, np.int64), 10)
    g, weight = np.ones((1, m, 1), F16), np.ones((1, 8, 1), F16)
    dx = calls.knn_dinput(g, weight, orders, num_inputs=10, out_dtype=F16)
    np.testing.assert_array_equal(dx.astype(np.float32), np.full((1, 10, 8), 40_000))
    m = 20_000_000
    orders = np.array([[0, 0], [m, 0]], np.int32), np.arange(m, dtype=np.int32), np.zeros(m, np.int32)
    dx = calls.knn_dinput(np.ones((1, m, 1), F16), weight[:, :1], orders, num_inputs=1, out_dtype=F32)
    assert dx.item() == m


def test_groups_share_or_own():
    rng = np.random.default_rng(4)
    n, m, k, v = 30, 22, 6, 4
    x = calls.normal(rng, (2, 1, 5, n, 8), F16)
    weight = calls.normal(rng, (1, 3, v, 8, 16), F16)
    bias = calls.normal(rng, (2, 3, 16), F32)
    tables = [[calls.random_table(rng, m, k, n, v) for _ in range(3)] for _ in range(2)]
    indices, slots = (np.array([[table[part] for table in row] for row in tables]) for part in (0, 1))
    y = calls.knn_forward(x, weight, indices, slots, bias, out_dtype=F32, lead=(2, 3))
    g = calls.normal(rng, (1, 3, 5, m, 16), F16)
    orders = [[calls.source_order(*table, n, v) for table in row] for row in tables]
    stacked = [np.array([[order[part] for order in row] for row in orders]) for part in range(3)]
    dx = calls.knn_dinput(g, weight, stacked, num_inputs=n, out_dtype=F32, lead=(2, 3))
    for i, j in np.ndindex(2, 3):
        exact = oracle.knn_forward(x[i, 0], weight[0, j], indices[i, j], slots[i, j], bias[i, j])
        np.testing.assert_allclose(y[i, j], exact, rtol=0, atol=2e-4)
        exact = oracle.knn_dinput(g[0, j], weight[0, j], indices[i, j], slots[i, j], num_inputs=n)
        np.testing.assert_allclose(dx[i, j], exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "shape",
    [(0, 5, 4, 3, 2, 2), (2, 0, 4, 3, 2, 2), (2, 5, 0, 3, 2, 2), (2, 5, 4, 0, 2, 2), (2, 5, 4, 3, 0, 2)],
    ids=str,
)
def test_empty(shape):  # case 18
    batch, n, m, k, c, o = shape
    x, weight, g = np.ones((batch, n, c), F16), np.ones((k, c, o), F16), np.ones((batch, m, o), F16)
    indices, bias = np.zeros((m, k), np.int32), np.full((o,), 5, F32)
    y = calls.knn_forward(x, weight, indices, None, bias, out_dtype=F16)
    np.testing.assert_array_equal(y, oracle.knn_forward(x, weight, indices, None, bias))
    orders = calls.source_order(indices, None, n, k)
    dx = calls.knn_dinput(g, weight, orders, num_inputs=n, out_dtype=F16)
    np.testing.assert_array_equal(dx, oracle.knn_dinput(g, weight, indices, num_inputs=n))


def test_same_bits_every_time():  # case 11
    x, weight, bias, g, indices, slots = gpu_problems.knn((6, 64, 64, 40, 400, 27, 30), BF16)
    orders = calls.source_order(indices, slots, 40, 30)
    first = None
    for _ in range(20):
        y = calls.knn_forward(x, weight, indices, slots, bias, out_dtype=F32)
        dx = calls.knn_dinput(g, weight, orders, num_inputs=40, out_dtype=F32)
        first = first or (y.tobytes(), dx.tobytes())
        assert first == (y.tobytes(), dx.tobytes())
