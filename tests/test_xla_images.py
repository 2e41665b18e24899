"""Dense passes and the cast in pure JAX on the cases from the field, whose right values are known by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from xla_calls import DTYPES, UNIT, knn_passes

import jax_knnconv as jkc
from jax_knnconv._xla import cast, dense, knn

HALVES = DTYPES[1:]


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


@pytest.mark.parametrize("stride", [1, 3, 2**31 - 1])
@pytest.mark.parametrize("dilation", [40, 2**31 - 1])
def test_taps_and_windows_far_outside_the_image(stride, dilation):
    """Only the middle tap reads anything; memory is that of images, not of what lies between taps or windows."""
    rng = np.random.default_rng(0)
    x, weight, bias = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 7, 5, 3), (3, 3, 3, 4), (4,)))
    options = {"stride": stride, "dilation": dilation, "implementation": "xla"}
    y, back = jax.vjp(lambda x, weight: jkc.conv2d(x, weight, bias, **options), x, weight)
    g = rng.integers(-3, 4, y.shape).astype(np.float32)
    # SAME centres the windows; half a pixel goes to the right.
    free = [size - 1 - (windows - 1) * stride for size, windows in zip((7, 5), y.shape[1:3], strict=True)]
    at = np.ix_(*((f + 1) // 2 + stride * np.arange(n) for f, n in zip(free, y.shape[1:3], strict=True)))
    read = x[:, at[0], at[1]]
    np.testing.assert_array_equal(y, read @ weight[1, 1] + bias)
    dx, dw = np.zeros_like(x), np.zeros_like(weight)
    dx[:, at[0], at[1]] = g @ weight[1, 1].T
    dw[1, 1] = np.einsum("bijc,bijo->co", read, g)
    for got, want in zip(back(jnp.asarray(g)), (dx, dw), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("which", ["dinput", "dweight"])
def test_memory_of_gradients_does_not_grow_with_dilation(which, stride):
    x, weight = jnp.ones((4, 32, 32, 8)), jnp.ones((3, 3, 8, 8))
    g = jnp.ones((4, 32 // stride, 32 // stride, 8))

    def temporary(dilation):
        options = {"stride": stride, "dilation": dilation, "implementation": "xla"}
        if which == "dinput":
            call, operands = lambda g, w: jkc.conv2d_dinput(g, w, x.shape, **options), (g, weight)
        else:
            call, operands = lambda x, g: jkc.conv2d_dweight(x, g, (3, 3), **options), (x, g)
        return jax.jit(call).lower(*operands).compile().memory_analysis().temp_size_in_bytes

    assert temporary(1000) < 16 * x.nbytes
