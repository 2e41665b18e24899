"""The pure-JAX implementation on the cases from the field: small inputs whose right values are known by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_knnconv._xla import cast, dense, knn

DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16]
HALVES = DTYPES[1:]
UNIT = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


@functools.partial(jax.jit, static_argnames=("zero_empty_rows", "out_dtype"))
def jitted_passes(x, weight, g, bias, indices, slots, orders, *, zero_empty_rows, out_dtype):
    y = knn.forward(x, weight, bias, indices, slots, zero_empty_rows=zero_empty_rows, out_dtype=out_dtype)
    dx = knn.dinput(g, weight, *orders[:3], num_inputs=x.shape[1], out_dtype=out_dtype)
    options = {"num_slots": weight.shape[0], "zero_empty_rows": zero_empty_rows, "with_bias": True, "group_rank": 0}
    slot_order = (None, None, None) if slots is None else orders[3:]
    dtypes = {"out_dtype": out_dtype, "bias_dtype": jnp.float32}
    return y, dx, *knn.dweight(x, g, indices, slots, *slot_order, **options, **dtypes)


def knn_passes(x, weight, indices, slots=None, bias=None, g=None, *, zero_empty_rows=False, dtype=jnp.float32):
    """(y, dx, dw, db) for x [B, N, C]; the cotangent g is ones where not given."""
    indices = np.asarray(indices, np.int32)
    slots = None if slots is None else np.asarray(slots, np.int32)
    x, weight = jnp.asarray(x, dtype), jnp.asarray(weight, dtype)
    orders = oracle.table_orders(indices, slots, x.shape[1], weight.shape[0])
    g = jnp.ones((x.shape[0], len(indices), weight.shape[2]), dtype) if g is None else jnp.asarray(g, dtype)
    return jitted_passes(
        x, weight, g, bias, indices, slots, orders, zero_empty_rows=zero_empty_rows, out_dtype=np.dtype(dtype)
    )


def column(values):
    """Numbers as [1, n, 1]: one batch row of single-channel nodes."""
    return np.asarray(values, np.float32).reshape(1, -1, 1)


def slot_weights(values):
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def check(results, y=None, dx=None, dw=None, db=None):
    for name, got, expected in zip(("y", "dx", "dw", "db"), results, (y, dx, dw, db), strict=True):
        if expected is not None:
            np.testing.assert_array_equal(oracle.f64(got).ravel(), expected, err_msg=name)


# Tables ------------------------------------------------------------------------------------------------------------


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


# Dense -------------------------------------------------------------------------------------------------------------


def dense_forward(x, weight, out_size, bias=None, *, out_dtype=None, **window):
    return dense.forward(
        x, weight, bias, **{**UNIT, **window}, output_size=out_size, out_dtype=out_dtype or weight.dtype
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_cancelling_sums(dtype):  # case 7
    x = jnp.full((1, 3, 3, 64), 100, dtype)
    weight = jnp.concatenate([jnp.full((3, 3, 32, 1), 100, dtype), jnp.full((3, 3, 32, 1), -100, dtype)], axis=2)
    assert dense_forward(x, weight, (1, 1)).item() == 0
    y, *_ = knn_passes(x.reshape(1, 9, 64), weight.reshape(9, 64, 1), [range(9)], dtype=dtype)
    assert y.item() == 0


def test_long_16_bit_sums():  # case 7
    ones = jnp.ones((1, 64, 64, 4), jnp.bfloat16)
    dtypes = {"out_dtype": jnp.bfloat16, "bias_dtype": jnp.float32}
    dw, db = dense.dweight(ones, ones, **UNIT, kernel_size=(1, 1), group_rank=0, with_bias=True, **dtypes)
    assert (oracle.f64(dw) == 4096).all()
    assert (oracle.f64(db) == 4096).all()


def test_overflow_is_infinite():  # case 7
    x, weight = jnp.full((1, 1, 1, 16), 100, jnp.float16), jnp.full((1, 1, 16, 1), 100, jnp.float16)
    assert dense_forward(x, weight, (1, 1)).item() == np.inf
    y, *_ = knn_passes(x.reshape(1, 1, 16), weight.reshape(1, 16, 1), [[0]], dtype=jnp.float16)
    assert y.item() == np.inf


@pytest.mark.parametrize(
    ("x", "pad", "expected"), [([1, 2, 3, 4, 5], 1, [210, 432, 54]), ([1, 2, 3, 4, 5, 6], 0, [321, 543, 65])]
)
def test_same_with_stride_2(x, pad, expected):  # case 30: the low pads of SAME
    image, weight = (jnp.asarray(v, jnp.float32).reshape(1, -1, 1, 1) for v in (x, [1, 10, 100]))
    y = dense_forward(image, weight.reshape(3, 1, 1, 1), (3, 1), stride=(2, 1), padding=(pad, 0))
    np.testing.assert_array_equal(y.ravel(), expected)


def test_bias_is_added_in_fp32():
    x, weight = jnp.ones((1, 1, 1, 1), jnp.bfloat16), jnp.ones((1, 1, 1, 1), jnp.bfloat16)
    y = dense_forward(x, weight, (1, 1), np.array([2**-9], np.float32), out_dtype=jnp.float32)
    assert y.item() == 1 + 2**-9


def test_empty_images():  # case 18
    weight = jnp.ones((3, 3, 3, 5))
    bias = np.full(5, 2, np.float32)
    dtypes = {"out_dtype": jnp.float32, "bias_dtype": jnp.float32}
    for x_shape, out in [((0, 8, 8, 3), (6, 6)), ((2, 2, 8, 3), (0, 6)), ((2, 0, 8, 3), (3, 6))]:
        x, g = jnp.ones(x_shape), jnp.ones((x_shape[0], *out, 5))
        y = dense_forward(x, weight, out, bias)
        np.testing.assert_array_equal(y, np.full(g.shape, 2))
        for stride in ((1, 1), (2, 2)):
            window = {"stride": stride, "padding": (0, 0), "dilation": (1, 1)}
            dx = dense.dinput(g, weight, **window, input_size=x_shape[1:3], out_dtype=jnp.float32)
            assert dx.shape == x_shape
            dw, db = dense.dweight(x, g, **window, kernel_size=(3, 3), group_rank=0, with_bias=True, **dtypes)
            np.testing.assert_array_equal(dw, np.zeros((3, 3, 3, 5)))
            np.testing.assert_array_equal(db, np.full(5, g[..., 0].size))


# The cast ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_cast(dtype, jit):  # case 37
    largest = float(jnp.finfo(dtype).max)
    rng = np.random.default_rng(37)
    values = np.concatenate(
        [[np.inf, -np.inf, 70000, -70000, 3.4e38, np.nan, 0.1, 1e-7, 6e-8, 2.0**-25, -0.0], rng.normal(size=1000)]
    ).astype(np.float32)
    function = jax.jit(cast.cast_operands, static_argnums=2) if jit else cast.cast_operands
    g, x = function(values, values, dtype)
    assert g.dtype == x.dtype == dtype
    with np.errstate(over="ignore", invalid="ignore"):
        rounded, clipped = values.astype(dtype), np.clip(values, -largest, largest).astype(dtype)
    np.testing.assert_array_equal(oracle.f64(x), oracle.f64(rounded))
    np.testing.assert_array_equal(oracle.f64(g), oracle.f64(clipped))
    if dtype == jnp.float16:
        np.testing.assert_array_equal(oracle.f64(g)[:6], [65504, -65504, 65504, -65504, 65504, np.nan])
        np.testing.assert_array_equal(oracle.f64(x)[:6], [np.inf, -np.inf, np.inf, -np.inf, np.inf, np.nan])


def test_cast_rounds_float64_to_float32_first():  # case 37
    value = 1 + 2.0**-11 + 2.0**-40  # in float32 a tie between float16 neighbours, which goes down; directly, up
    with jax.enable_x64(True):
        g, x = jax.jit(cast.cast_operands, static_argnums=2)(np.full(3, value), np.full(3, -value), jnp.float16)
    np.testing.assert_array_equal(oracle.f64(g), np.full(3, 1))
    np.testing.assert_array_equal(oracle.f64(x), np.full(3, -1))


@pytest.mark.parametrize("dtype", HALVES)
def test_fp32_operand_of_16_bit_product_is_rounded(dtype):
    x = np.float32(1 + 2.0**-12)
    one = jnp.ones((1, 1, 1, 1), dtype)
    y = jax.jit(lambda x: dense_forward(x, one, (1, 1), out_dtype=jnp.float32))(np.full((1, 1, 1, 1), x))
    assert y.item() == 1
    forward = jax.jit(lambda x, i: knn.forward(x, one[0], None, i, None, zero_empty_rows=False, out_dtype=jnp.float32))
    assert forward(np.full((1, 1, 1), x), np.zeros((1, 1), np.int32)).item() == 1
    dtypes = {"out_dtype": jnp.float32, "bias_dtype": jnp.float32}
    weight = jax.jit(
        lambda x: dense.dweight(x, one, **UNIT, kernel_size=(1, 1), group_rank=0, with_bias=False, **dtypes)
    )
    dw, db = weight(np.full((1, 1, 1, 1), x))
    assert dw.item() == 1
    assert db.shape == (0,)
