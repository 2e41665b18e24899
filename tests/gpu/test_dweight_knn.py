"""KNN weight and bias gradients on the GPU against NumPy float64."""

import gpu_calls as calls
import gpu_dweight_calls
import gpu_problems
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32
from gpu_problems import KNN_SHAPES

TILES = [(rows, columns, 1) for rows in (32, 64, 128) for columns in (32, 64, 128)]
SCALAR_TILES = [(rows, columns, 0) for rows in (32, 128) for columns in (32, 64, 128)]
REGISTER_TILES = [(64, columns, 2) for columns in (32, 64, 128)]


def _problem(shape, x_dtype, g_dtype):
    problem = gpu_problems.knn(shape, g_dtype, x_dtype)
    return problem.x, problem.g, problem.indices, problem.slots, problem.num_slots


def _answer(x, g, indices, slots, **options):
    """(exact, bound) of (dw, db); x as the kernel sees it."""
    x = x.astype(g.dtype)
    exact = oracle.knn_dweight(x, g, indices, slots, **options)
    return exact, oracle.knn_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), indices, slots, **options)


def _check(shape, x_dtype, g_dtype, out_dtype, zero_empty_rows=False, **how):
    x, g, indices, slots, v = _problem(shape, x_dtype, g_dtype)
    options = {"num_slots": v, "zero_empty_rows": zero_empty_rows}
    found = gpu_dweight_calls.knn_dweight(x, g, indices, slots, out_dtype=out_dtype, **options, **how)
    gpu_dweight_calls.check(found, *_answer(x, g, indices, slots, **options), out_dtype)


@pytest.mark.parametrize("shape", KNN_SHAPES, ids=str)
@pytest.mark.parametrize(
    ("x_dtype", "g_dtype", "out_dtype"), [(F16, F16, F16), (BF16, BF16, BF16), (F32, BF16, F32), (F32, F16, F16)]
)
def test_dweight(shape, x_dtype, g_dtype, out_dtype):
    _check(shape, x_dtype, g_dtype, out_dtype, zero_empty_rows=g_dtype == F16)


@pytest.mark.parametrize("tile", TILES + SCALAR_TILES + REGISTER_TILES, ids=str)
def test_every_tile(tile):
    for shape in KNN_SHAPES[1], KNN_SHAPES[2], KNN_SHAPES[5]:
        _check(shape, BF16, BF16, F32, tile=tile)


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile[0] != 64], ids=str)
@pytest.mark.parametrize("slots", [None, 7], ids=["columns", "slots"])
def test_every_tile_whose_g_alone_is_copied(slots, tile):
    """x has lines of no multiple of 16 bytes."""
    _check((20, 20, 40, 25, 19, 9, slots), BF16, BF16, F32, tile=tile)


@pytest.mark.parametrize("shape", [KNN_SHAPES[0], KNN_SHAPES[3]], ids=str)
def test_staging_does_not_change_bits(shape):
    x, g, indices, slots, v = _problem(shape, F16, F16)
    for rows, stagings in (128, (0, 1)), (64, (1, 2)):
        one, other = (
            gpu_dweight_calls.knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=F32, tile=(rows, 128, staging))
            for staging in stagings
        )
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("slots", [None, 4], ids=["columns", "slots"])
@pytest.mark.parametrize("slices", [2, 3, 40])
def test_slices_and_chains(slots, slices):
    # 12,000 positions: with little room for slices, each is longer than a chain.
    _check((30, 8, 16, 100, 400, 4, slots), F16, F16, F32, slices=slices)


def test_no_bias():
    x, g, indices, slots, v = _problem(KNN_SHAPES[1], BF16, BF16)
    dw, db = gpu_dweight_calls.knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=BF16, bias=False)
    exact, bound = _answer(x, g, indices, slots, num_slots=v)
    oracle.assert_within_ulp(dw, exact[0], 2 * bound[0], BF16)
    assert db.shape == (0,)


@pytest.mark.parametrize("shape", [KNN_SHAPES[0], KNN_SHAPES[3], KNN_SHAPES[11]], ids=str)
def test_every_run_gives_the_same_bits(shape):
    x, g, indices, slots, v = _problem(shape, BF16, BF16)
    first = gpu_dweight_calls.knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=F32)
    for _ in range(5):
        again = gpu_dweight_calls.knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=F32)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("with_slots", [False, True], ids=["columns", "slots"])
@pytest.mark.parametrize("lead", [(3, 2), (1, 2), (3, 1), (1, 1)], ids=str)
def test_groups(with_slots, lead):
    """A dimension of the result that is 1 where the operands have more is summed over."""
    rng = np.random.default_rng(1)
    tables = [calls.random_table(rng, 30, 5, 40, 6 if with_slots else None) for _ in range(3)]
    indices = np.stack([table[0] for table in tables])[:, None]
    slots = np.stack([table[1] for table in tables])[:, None] if with_slots else None
    v = 6 if with_slots else 5
    x, g = calls.normal(rng, (1, 2, 4, 40, 8), F16), calls.normal(rng, (3, 2, 4, 30, 24), F16)
    order = (
        gpu_dweight_calls.NO_ORDER
        if slots is None
        else [part[:, None] for part in gpu_dweight_calls.slot_order(indices[:, 0], slots[:, 0], 40, v)]
    )
    results = gpu_dweight_calls._results((*lead, v, 8, 24), 2, F32, True, None)
    operands = [x, g, indices, calls.NO_SLOTS if slots is None else slots, *order]
    found = calls.call("knn_dweight", operands, results, zero_empty_rows=np.int64(1))[:2]
    exact = [np.zeros((3, 2, v, 8, 24)), np.zeros((3, 2, 24))]
    bound = [np.zeros((3, 2, v, 8, 24)), np.zeros((3, 2, 24))]
    for i, j in np.ndindex(3, 2):
        answers = _answer(
            x[0, j], g[i, j], indices[i, 0], None if slots is None else slots[i, 0], num_slots=v, zero_empty_rows=True
        )
        for into, answer in zip((exact, bound), answers, strict=True):
            into[0][i, j], into[1][i, j] = answer
    summed = tuple(i for i in range(2) if lead[i] == 1)
    exact, bound = ([part.sum(summed, keepdims=True) for part in parts] for parts in (exact, bound))
    gpu_dweight_calls.check(found, exact, bound, F32)


@pytest.mark.parametrize("with_slots", [False, True], ids=["columns", "slots"])
@pytest.mark.parametrize(
    ("batch", "n", "m", "k", "c"), [(0, 4, 3, 2, 8), (2, 0, 3, 2, 8), (2, 4, 0, 2, 8), (2, 4, 3, 0, 8), (2, 4, 3, 2, 0)]
)
def test_empty(with_slots, batch, n, m, k, c):
    x, g = np.ones((batch, n, c), F16), np.ones((batch, m, 5), F16)
    indices = np.zeros((m, k), np.int32)
    slots, v = (np.zeros((m, k), np.int32), 3) if with_slots else (None, k)
    dw, db = gpu_dweight_calls.knn_dweight(x, g, indices, slots, num_slots=v, out_dtype=F16)
    taps = batch * m * k if n > 0 else 0
    np.testing.assert_array_equal(dw[:1], np.full((min(v, 1), c, 5), taps if with_slots else batch * m * (n > 0)))
    np.testing.assert_array_equal(dw[1:], np.full((max(v - 1, 0), c, 5), 0 if with_slots else batch * m * (n > 0)))
    np.testing.assert_array_equal(db, np.full((5,), batch * m))


def test_holes_read_nothing():
    x = np.array([[np.nan], [2], [3]], F16)[None]
    g = np.ones((1, 2, 1), F16)
    dw, db = gpu_dweight_calls.knn_dweight(
        x, g, np.array([[-1, 3], [1, 2]], np.int32), num_slots=2, out_dtype=F16, zero_empty_rows=True
    )
    np.testing.assert_array_equal(dw.ravel(), [2, 3])
    np.testing.assert_array_equal(db, [1])


def test_twenty_million_ones():
    m = 20_000_000
    ones, zeros = jnp.ones((m, 1), jnp.bfloat16), jnp.zeros((m, 1), jnp.int32)
    dw, db = gpu_dweight_calls.knn_dweight(ones[:1], ones, zeros, num_slots=1, out_dtype=F32)
    assert dw.item() == m
    assert db.item() == m


def test_offsets_of_64_bits():
    n, c = 2**23 + 8, 256  # more than 2^31 elements
    x = jnp.zeros((n, c), jnp.bfloat16).at[-1].set(1)
    dw, _ = gpu_dweight_calls.knn_dweight(
        x, np.ones((1, 8), BF16), np.array([[n - 1]], np.int32), num_slots=1, out_dtype=F32
    )
    np.testing.assert_array_equal(dw, np.ones((1, c, 8)))


@pytest.mark.parametrize("shape", [KNN_SHAPES[0], KNN_SHAPES[3], KNN_SHAPES[12]], ids=str)
def test_backward(shape):
    x, g, indices, slots, v = _problem(shape, BF16, BF16)
    weight = calls.normal(np.random.default_rng(2), (v, x.shape[-1], g.shape[-1]), BF16)
    dx, *found = gpu_dweight_calls.knn_backward(
        g, x, weight, indices, slots, dx_dtype=BF16, dw_dtype=F32, zero_empty_rows=True
    )
    gpu_dweight_calls.check(found, *_answer(x, g, indices, slots, num_slots=v, zero_empty_rows=True), F32)
    exact = oracle.knn_dinput(g, weight, indices, slots, num_inputs=x.shape[1])
    bound = oracle.knn_dinput(abs(oracle.f64(g)), abs(oracle.f64(weight)), indices, slots, num_inputs=x.shape[1])
    oracle.assert_within_ulp(dx, exact, 2 * bound, BF16, "dx")
