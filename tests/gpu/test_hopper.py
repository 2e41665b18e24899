"""Hopper's kernels of forward and dinput, forced, against NumPy float64."""

import functools

import gpu_calls as calls
import gpu_problems
import jax
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32
from gpu_problems import DENSE_SHAPES

pytestmark = pytest.mark.usefixtures("hopper")

# B, C, O, N, M, K, V (None: the column is the slot): rows one by one below a batch of 64, else boxes of 128. With 2
# slots, cells have more taps than a thread sees at a time, and slots more than fit into a stage. In dinput, two blocks
# share the lists of 30 and of 20 nodes, in tiles of 192 and 128 columns, and those of 300 nodes have tiles of 96. In
# forward, two share those of 41 nodes and 200 columns or more.
KNN_SHAPES = [
    (1, 64, 64, 300, 257, 27, None),
    (1, 72, 32, 300, 257, 27, 40),
    (2, 264, 136, 90, 150, 20, 2),
    (8, 128, 64, 40, 12, 3, 9),
    (3, 8, 200, 50, 41, 9, None),
    (20, 136, 200, 50, 41, 9, 5),
    (70, 200, 248, 50, 41, 9, None),
    (40, 64, 64, 60, 33, 5, 200),
    (11, 64, 64, 140, 150, 9, None),
    (64, 64, 64, 33, 20, 9, None),
    (128, 96, 160, 40, 17, 9, 9),
    (130, 40, 72, 25, 19, 40, None),
    (130, 40, 72, 25, 19, 40, 7),
    (130, 192, 72, 30, 50, 9, None),
    (200, 192, 136, 20, 40, 9, 7),
    (64, 96, 64, 300, 260, 5, None),
    (300, 64, 136, 30, 11, 3, None),
    # Samples in shared memory, as in some of the above.
    (300, 64, 48, 70, 200, 5, None),
    (7, 64, 40, 333, 650, 3, None),
    (3, 64, 56, 100, 129, 1, None),
    (140, 64, 64, 1100, 130, 9, None),
]
TYPES = [(F16, F16), (BF16, BF16), (F16, F32), (BF16, F32)]


def _check(found, function, operands, out_dtype, *more, **static):
    exact = function(*operands, *more, **static)
    bound = function(*(abs(oracle.f64(operand)) for operand in operands), *more, **static)
    oracle.assert_within_ulp(found, exact, calls.SUM_SLACK * bound, out_dtype)


@pytest.mark.parametrize("shape", KNN_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_knn(shape, dtype, out_dtype):
    x, weight, bias, g, indices, slots = gpu_problems.knn(shape, dtype)
    zero = dtype == out_dtype
    options = {"zero_empty_rows": zero}
    y = calls.knn_forward(x, weight, indices, slots, bias, out_dtype=out_dtype, kernel="hopper", **options)
    exact = oracle.knn_forward(x, weight, indices, slots, bias, **options)
    bound = oracle.knn_forward(abs(oracle.f64(x)), abs(oracle.f64(weight)), indices, slots, abs(bias))
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)
    n = x.shape[1]
    orders = calls.source_order(indices, slots, n, len(weight))
    dx = calls.knn_dinput(g, weight, orders, num_inputs=n, out_dtype=out_dtype, kernel="hopper")
    _check(dx, oracle.knn_dinput, (g, weight), out_dtype, indices, slots, num_inputs=n)


@pytest.mark.parametrize("shape", [s for s in DENSE_SHAPES if s[3] % 8 == 0 and s[4] % 8 == 0], ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_dense(shape, dtype, out_dtype):
    x, weight, bias, g, sizes, window = gpu_problems.dense(shape, dtype)
    y = calls.dense_forward(x, weight, bias, output_size=sizes, out_dtype=out_dtype, kernel="hopper", **window)
    _check(y, oracle.dense_forward, (x, weight, bias), out_dtype, output_size=sizes, **window)
    if window["stride"][0] * window["stride"][1] > 9:
        return  # more residue classes than a launch takes
    size = x.shape[1:3]
    dx = calls.dense_dinput(g, weight, input_size=size, out_dtype=out_dtype, kernel="hopper", **window)
    _check(dx, oracle.dense_dinput, (g, weight), out_dtype, input_size=size, **window)


def test_rows_of_large_tiles_have_the_bits_of_small_ones():
    """On 132 multiprocessors the whole batch has tiles of 192 rows, and few of its images others."""
    batch, h, w, c, o, few = 73, 16, 15, 200, 208, [0, 1, 40, 72]
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    rng = np.random.default_rng(0)
    x, g = calls.normal(rng, (batch, h, w, c), BF16), calls.normal(rng, (batch, h, w, o), BF16)
    weight, bias = calls.normal(rng, (3, 3, c, o), BF16, 0.03), calls.normal(rng, (o,), F32)

    def forward(x):
        return calls.dense_forward(x, weight, bias, output_size=(h, w), out_dtype=F32, kernel="hopper", **window)

    def dinput(g):
        return calls.dense_dinput(g, weight, input_size=(h, w), out_dtype=F32, kernel="hopper", **window)

    y, dx = forward(x)[few], dinput(g)[few]
    _check(y, oracle.dense_forward, (x[few], weight, bias), F32, output_size=(h, w), **window)
    _check(dx, oracle.dense_dinput, (g[few], weight), F32, input_size=(h, w), **window)
    np.testing.assert_array_equal(y, forward(x[few]))
    np.testing.assert_array_equal(dx, dinput(g[few]))


@pytest.mark.parametrize("n", [230, 1000])
def test_samples_have_the_bits_that_they_have_alone(n):
    """Blocks compute parts of a sample, samples, or several of these, of which they hold two of 230 nodes."""
    batch, few = 300, [0, 1, 131, 132, 299]
    x, weight, bias, _, indices, _ = gpu_problems.knn((batch, 64, 64, n, 150, 9, None), BF16)

    def run(x):
        return calls.knn_forward(x, weight, indices, None, bias, out_dtype=F32, kernel="hopper")

    y = run(x)[few]
    exact = oracle.knn_forward(x[few], weight, indices, None, bias)
    bound = oracle.knn_forward(abs(oracle.f64(x[few])), abs(oracle.f64(weight)), indices, None, abs(bias))
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, F32)
    np.testing.assert_array_equal(y, run(x[few]))
    for i, b in enumerate(few):
        np.testing.assert_array_equal(y[i : i + 1], run(x[b : b + 1]))


@pytest.mark.parametrize("batch", [1, 12, 70])
def test_nothing_reads_what_holes_hide(batch):  # cases 8 to 10
    """Junk indices stand for holes, and NaN in a row that no tap reads stays there."""
    rng = np.random.default_rng(0)
    n, m, k, c = 20, 50, 9, 64
    indices = calls.random_table(rng, m, k, n)[0]
    indices = np.where(indices == 0, 1, indices)
    x, weight = calls.normal(rng, (batch, n, c), BF16), calls.normal(rng, (k, c, c), BF16, 0.05)
    x[:, 0] = np.nan
    y = calls.knn_forward(x, weight, indices, out_dtype=F32, kernel="hopper")
    x[:, 0] = 0
    np.testing.assert_allclose(y, oracle.knn_forward(x, weight, indices), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [F16, BF16])
# Two blocks share the lists of a batch of 70.
@pytest.mark.parametrize(("batch", "channels"), [(1, 64), (1, 72), (70, 72), (70, 384)])
def test_hubs_are_left_to_their_own_sums(batch, channels, dtype):
    rng = np.random.default_rng(batch)
    counts = np.array([3, 256, 600, 0, 257, 1])
    owners, slots = np.repeat(np.arange(len(counts)), counts), rng.integers(0, 5, counts.sum())
    g = calls.normal(rng, (batch, len(owners), 64), dtype)
    weight = calls.normal(rng, (5, channels, 64), dtype, 0.1)
    orders = gpu_problems.hub_order(owners, slots, len(counts))
    dx = calls.knn_dinput(g, weight, orders, num_inputs=len(counts), out_dtype=F32, kernel="hopper")
    exact, bound = np.zeros((2, batch, len(counts), channels))
    for slot in range(5):
        taps = slots == slot
        for target, transform in (exact, np.asarray), (bound, np.abs):
            products = transform(oracle.f64(g[:, taps])) @ transform(oracle.f64(weight[slot])).T
            np.add.at(target, (slice(None), owners[taps]), products)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, F32)


@pytest.mark.parametrize(("dtype", "c"), [(BF16, 64), (BF16, 72), (F16, 64)])
def test_infinities_stay_with_their_node(dtype, c):
    """A tile adds the taps of many nodes: what is not finite in one of them must reach no other one."""
    m, n = 400, 100
    indices = (np.arange(m) % n).astype(np.int32)[:, None]
    weight, g = np.ones((1, c, c), dtype), np.ones((1, m, c), dtype)
    g[0, 0, 2], g[0, 1, 3], g[0, n + 1, 3], g[0, 2, 5] = np.inf, np.inf, -np.inf, np.nan
    orders = calls.source_order(indices, None, n, 1)
    dx = calls.knn_dinput(g, weight, orders, num_inputs=n, out_dtype=F32, kernel="hopper")
    np.testing.assert_array_equal(dx[0, 0], np.full(c, np.inf))
    assert np.isnan(dx[0, 1:3]).all()
    np.testing.assert_array_equal(dx[0, 3:], np.full((n - 3, c), 4 * c))


@pytest.mark.parametrize("batch", [2, 0])
def test_without_products_the_bias_remains(batch):  # case 18
    x, weight = np.ones((batch, 5, 64), F16), np.ones((0, 64, 64), F16)
    y = calls.knn_forward(
        x, weight, np.zeros((3, 0), np.int32), None, np.full((64,), 5, F32), out_dtype=F16, kernel="hopper"
    )
    np.testing.assert_array_equal(y, np.full((batch, 3, 64), 5, F16))


def test_what_is_not_taken_is_refused():
    x, weight, indices = np.ones((1, 4, 33), F16), np.ones((2, 33, 64), F16), np.zeros((4, 2), np.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match='kernel="hopper" does not take this call'):
        calls.knn_forward(x, weight, indices, out_dtype=F16, kernel="hopper")


def test_shapes_choose_hopper_and_bits_stay():  # case 11
    x, weight, bias, g, indices, slots = gpu_problems.knn((6, 64, 64, 40, 400, 27, 30), BF16)
    orders = calls.source_order(indices, slots, 40, 30)
    forward = functools.partial(calls.knn_forward, x, weight, indices, slots, bias, out_dtype=F32)
    dinput = functools.partial(calls.knn_dinput, np.repeat(g, 12, 0), weight, orders, num_inputs=40, out_dtype=F32)
    for run in forward, dinput:
        expected = run(kernel="hopper")
        for _ in range(10):
            np.testing.assert_array_equal(run(), expected)
