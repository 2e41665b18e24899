"""dinput of KNN stems on the GPU, on the kernels that add up products of few channels, against NumPy float64."""

import gpu_calls as calls
import jax
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

# Batch, N, M, K, V or None, C, O.
SHAPES = [
    (1, 300, 140, 40, None, 3, 64),
    (5, 90, 41, 25, 30, 4, 24),
    (40, 200, 70, 30, None, 3, 96),
    (30, 61, 33, 9, None, 4, 40),
    (40, 65, 129, 50, 37, 2, 64),
    (300, 130, 40, 60, None, 1, 8),
    (60, 1500, 200, 121, None, 3, 96),
    (20, 60, 150, 100, None, 4, 32),
    (3, 5000, 60, 9, None, 3, 16),
]
HOPPER_SHAPES = [
    (5, 300, 140, 40, None, 3, 64),
    (40, 200, 70, 30, None, 3, 96),
    (60, 1500, 200, 121, None, 3, 96),
    (3, 4096, 60, 9, None, 3, 16),
    (7, 61, 33, 50, 128, 3, 24),
    (2, 130, 300, 3, 1, 3, 56),
    (20, 900, 500, 65, None, 3, 96),
    (2, 4085, 964, 121, None, 3, 88),
]


@pytest.fixture(params=["halo", "hopper"])
def family(request):
    """The families that have such kernels."""
    if request.param == "hopper":
        request.getfixturevalue("hopper")
    return {"kernel": request.param}


def _problem(shape, dtype):
    batch, n, m, k, v, c, o = shape
    rng = np.random.default_rng(8)
    g, weight = calls.normal(rng, (batch, m, o), dtype), calls.normal(rng, (v or k, c, o), dtype, (k * o) ** -0.5)
    return g, weight, *calls.random_table(rng, m, k, n, v)


def _check(dx, g, weight, indices, slots, out_dtype):
    exact = oracle.knn_dinput(g, weight, indices, slots, num_inputs=dx.shape[-2])
    bound = oracle.knn_dinput(abs(oracle.f64(g)), abs(oracle.f64(weight)), indices, slots, num_inputs=dx.shape[-2])
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, out_dtype)


TYPES = [(F16, F16), (BF16, F32), (BF16, BF16)]


def _check_dinput(shape, dtype, out_dtype, kernel):
    g, weight, indices, slots = _problem(shape, dtype)
    n, v = shape[1], weight.shape[0]
    g[:, 1] = np.nan  # random_table's empty row
    orders = calls.source_order(indices, slots, n, v)
    dx = calls.knn_dinput(g, weight, orders, num_inputs=n, out_dtype=out_dtype, kernel=kernel)
    _check(dx, np.nan_to_num(g), weight, indices, slots, out_dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_dinput(shape, dtype, out_dtype):
    _check_dinput(shape, dtype, out_dtype, "halo")


@pytest.mark.parametrize("shape", HOPPER_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_dinput_on_hopper(shape, dtype, out_dtype, hopper):
    _check_dinput(shape, dtype, out_dtype, "hopper")


def test_ones_count_taps(family):
    rng = np.random.default_rng(9)
    indices, _ = calls.random_table(rng, 150, 20, 90)
    orders = calls.source_order(indices, None, 90, 20)
    dx = calls.knn_dinput(
        np.ones((50, 150, 8), F16), np.ones((20, 3, 8), F16), orders, num_inputs=90, out_dtype=F32, **family
    )
    taps = np.bincount(indices[(indices >= 0) & (indices < 90)], minlength=90)
    np.testing.assert_array_equal(dx, np.broadcast_to(8.0 * taps[:, None], dx.shape))


@pytest.mark.parametrize("out_dtype", [F32, BF16], ids=str)
def test_hubs(out_dtype, family):
    """Lists of 256, 257 and 1000 taps among short ones; the two last are hubs."""
    rng = np.random.default_rng(10)
    batch, n, m, k, c, o = 40, 70, 120, 30, 3, 72
    indices = rng.integers(3, n, m * k)
    places = rng.permutation(m * k)
    for source, (begin, end) in enumerate([(0, 256), (256, 513), (513, 1513)]):
        indices[places[begin:end]] = source
    indices = indices.reshape(m, k).astype(np.int32)
    g, weight = calls.normal(rng, (batch, m, o), BF16), calls.normal(rng, (k, c, o), BF16, 0.1)
    orders = calls.source_order(indices, None, n, k)
    dx = calls.knn_dinput(g, weight, orders, num_inputs=n, out_dtype=out_dtype, **family)
    _check(dx, g, weight, indices, None, out_dtype)


def test_groups_share_or_own(family):
    rng = np.random.default_rng(11)
    n, m, k = 90, 40, 12
    g, weight = calls.normal(rng, (1, 3, 60, m, 16), F16), calls.normal(rng, (2, 3, k, 3, 16), F16)
    tables = [calls.random_table(rng, m, k, n)[0] for _ in range(2)]
    orders = [calls.source_order(table, None, n, k) for table in tables]
    stacked = [np.array([[order[part]] for order in orders]) for part in range(3)]
    dx = calls.knn_dinput(g, weight, stacked, num_inputs=n, out_dtype=F32, lead=(2, 3), **family)
    for i, j in np.ndindex(2, 3):
        exact = oracle.knn_dinput(g[0, j], weight[i, j], tables[i], None, num_inputs=n)
        np.testing.assert_allclose(dx[i, j], exact, rtol=0, atol=2e-4)


def test_same_bits_every_time_and_in_every_batch(family):  # case 11
    g, weight, indices, slots = _problem(SHAPES[2], BF16)
    orders = calls.source_order(indices, slots, 200, 30)
    first = None
    for _ in range(10):
        dx = calls.knn_dinput(g, weight, orders, num_inputs=200, out_dtype=F32, **family)
        first = dx if first is None else first
        np.testing.assert_array_equal(dx.view(np.int32), first.view(np.int32))
    dx = calls.knn_dinput(g[4:], weight, orders, num_inputs=200, out_dtype=F32, **family)
    np.testing.assert_array_equal(dx.view(np.int32), first[4:].view(np.int32))


@pytest.mark.parametrize("batch", [100, 33])
def test_chosen_by_shape(batch, gpu):
    """The same bits as the forced kernels': the portable ones add in another order."""
    if batch * 4 < gpu.core_count:
        pytest.skip("so few samples do not fill the device")
    g, weight, indices, _ = _problem((batch, 300, 140, 40, None, 3, 64), BF16)
    orders = calls.source_order(indices, None, 300, 40)
    best = "hopper" if float(gpu.compute_capability) == 9 else "halo"
    by_shape, forced, portable = (
        calls.knn_dinput(g, weight, orders, num_inputs=300, out_dtype=F32, kernel=kernel)
        for kernel in (None, best, "portable")
    )
    np.testing.assert_array_equal(by_shape, forced)
    assert (by_shape != portable).any()
    _check(by_shape, g, weight, indices, None, F32)


@pytest.mark.parametrize(("c", "o"), [(5, 16), (3, 104), (3, 12)])
def test_refuses_what_does_not_fit(c, o):
    orders = calls.source_order(np.zeros((40, 10), np.int32), None, 5, 10)
    with pytest.raises(jax.errors.JaxRuntimeError, match='kernel="halo" does not take this call'):
        calls.knn_dinput(
            np.ones((40, 40, o), F16), np.ones((10, c, o), F16), orders, num_inputs=5, out_dtype=F16, kernel="halo"
        )
