"""conv2d and its gradients against NumPy float64 and lax.conv_general_dilated."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import jax_knnconv as jkc

DTYPES = ("float32", "bfloat16", "float16")


def arrays(rng, *shapes, dtype="float32"):
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def check(x, weight, g, *, stride, padding, dilation, pads, implementation="auto"):
    """All three passes, compiled together, against float64; pads are the low pads."""
    window = {"stride": stride, "padding": padding, "dilation": dilation, "implementation": implementation}

    @jax.jit
    def passes(x, weight, g):
        dw, db = jkc.conv2d_dweight(x, g, weight.shape, **window)
        return jkc.conv2d(x, weight, **window), jkc.conv2d_dinput(g, weight, x.shape, **window), dw, db

    y, dx, dw, db = passes(x, weight, g)
    geometry = {"stride": stride, "padding": pads, "dilation": dilation}
    x64, w64, g64 = oracle.f64(x, weight, g)

    def compare(name, got, function, left, right, **sizes):
        want, slack = function(left, right, **geometry, **sizes), function(abs(left), abs(right), **geometry, **sizes)
        for part, value, exact, sums in zip(
            name, got, *(v if len(got) > 1 else (v,) for v in (want, slack)), strict=True
        ):
            oracle.assert_within_ulp(value, exact, sums, x.dtype, part)

    compare(("y",), (y,), oracle.dense_forward, x64, w64, output_size=y.shape[1:3])
    compare(("dx",), (dx,), oracle.dense_dinput, g64, w64, input_size=x.shape[1:3])
    compare(("dw", "db"), (dw, db), oracle.dense_dweight, x64, g64, kernel_size=weight.shape[:2])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_random_shapes(dtype, data):
    """Case 5: hundreds of small shapes, all passes, each dtype."""
    c, o = data.draw(st.integers(1, 33)), data.draw(st.integers(1, 33))
    h, w = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    mode = data.draw(st.sampled_from(["SAME", "SAME_LOWER", "VALID", "explicit"]))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if mode == "explicit":
        padding = [data.draw(st.tuples(st.integers(-2, 4), st.integers(-2, 4))) for _ in range(2)]
        assume(all(size + sum(pair) >= 0 for size, pair in zip((h, w), padding, strict=True)))  # else an error
        pads = (padding[0][0], padding[1][0])
    else:
        pads = tuple(low for low, _ in jax.lax.padtype_to_pads((h, w), span, stride, mode))
        padding = mode
    batch = data.draw(st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x, weight = arrays(rng, (batch, h, w, c), (*kernel, c, o), dtype=dtype)
    both = padding if mode == "explicit" else jax.lax.padtype_to_pads((h, w), span, stride, mode)
    output = [max(0, (n + sum(p) - k) // s + 1) for n, p, k, s in zip((h, w), both, span, stride, strict=True)]
    (g,) = arrays(rng, (batch, *output, o), dtype=dtype)
    check(x, weight, g, stride=stride, padding=padding, dilation=dilation, pads=pads)


def test_stride_with_dilation_in_bf16():
    """Case 5's own shape."""
    x, weight = arrays(np.random.default_rng(0), (2, 1, 16, 4), (1, 3, 4, 16), dtype="bfloat16")
    (g,) = arrays(np.random.default_rng(1), (2, 1, 8, 16), dtype="bfloat16")
    pads = tuple(low for low, _ in jax.lax.padtype_to_pads((1, 16), (1, 5), (1, 2), "SAME"))
    check(x, weight, g, stride=(1, 2), padding="SAME", dilation=(1, 2), pads=pads)


GRID = list(
    itertools.product((1, 2, 3), (1, 2), ("SAME", "SAME_LOWER", "VALID", ((2, 1), (0, 3))), ((9, 7), (8, 5)), DTYPES)
)


@pytest.mark.parametrize(("stride", "dilation", "padding", "size", "dtype"), GRID)
def test_equals_lax(stride, dilation, padding, size, dtype):
    """Case 38: the whole grid, all passes."""
    rng = np.random.default_rng(7)
    x, weight = arrays(rng, (2, *size, 5), (3, 3, 5, 6), dtype=dtype)

    def ours(x, weight):
        return jkc.conv2d(
            x, weight, stride=stride, padding=padding, dilation=dilation, preferred_element_type="float32"
        )

    def peer(x, weight):
        return jax.lax.conv_general_dilated(
            x.astype("float32"),
            weight.astype("float32"),
            (stride, stride),
            padding,
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision="highest",
        )

    y, back = jax.vjp(ours, x, weight)
    want, peer_back = jax.vjp(peer, x, weight)
    absolute, abs_back = jax.vjp(peer, jnp.abs(x), jnp.abs(weight))
    oracle.assert_within_ulp(y, want, absolute, "float32", "y")
    (g,) = arrays(rng, y.shape, dtype=dtype)
    g = g.astype("float32")
    for name, got, right, slack in zip("xw", back(g), peer_back(g), abs_back(jnp.abs(g)), strict=True):
        oracle.assert_within_ulp(got, oracle.f64(right), oracle.f64(slack), dtype, f"d{name}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_ones_count_taps_every_time(dtype):
    """Case 6: 72 inside, 48 at edges, 32 in corners; 100 calls, the same bits."""
    x, weight = jnp.ones((40, 32, 32, 8), dtype), jnp.ones((3, 3, 8, 8), dtype)
    run = jax.jit(jkc.conv2d)
    first = np.asarray(run(x, weight))
    want = np.full((32, 32), 72)
    want[[0, -1], :] = want[:, [0, -1]] = 48
    want[np.ix_([0, -1], [0, -1])] = 32
    assert (first.astype(np.float64) == want[None, :, :, None]).all()
    for _ in range(99):
        assert np.asarray(run(x, weight)).tobytes() == first.tobytes()


def test_sums_are_float32():
    """Case 7: partial sums may leave float16's range and precision; the result is rounded once."""
    x = jnp.full((1, 3, 3, 64), 100, "float16")
    weight = jnp.concatenate([jnp.full((3, 3, 32, 1), 100, "float16"), jnp.full((3, 3, 32, 1), -100, "float16")], 2)
    assert jkc.conv2d(x, weight, padding="VALID").item() == 0
    ones = jnp.ones((1, 64, 64, 4), "bfloat16")
    dw, db = jkc.conv2d_dweight(ones, ones, (1, 1))
    assert (np.asarray(dw, np.float64) == 4096).all()
    assert (np.asarray(db, np.float64) == 4096).all()
    x, weight = jnp.full((1, 1, 1, 16), 100, "float16"), jnp.full((1, 1, 16, 1), 100, "float16")
    assert jkc.conv2d(x, weight).item() == np.inf


def test_mixed_dtypes():
    """Case 17: dtypes of results; float32 output of a bf16 product."""
    x, weight = jnp.ones((1, 1, 8, 4), "bfloat16"), jnp.ones((1, 3, 4, 8), "bfloat16")

    def loss(x, weight):
        y = jkc.conv2d(x, weight, padding="VALID", preferred_element_type="float32")
        assert y.dtype == jnp.float32
        return y.sum()

    dx, dw = jax.grad(loss, (0, 1))(x, weight)
    assert (dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert (np.asarray(dx, np.float64) == np.array([8, 16, 24, 24, 24, 24, 16, 8])[None, None, :, None]).all()
    assert (np.asarray(dw, np.float64) == 6).all()
    for kind in ("bfloat16", "float16"):
        y, back = jax.vjp(lambda x, w: jkc.conv2d(x, w, padding="VALID"), x.astype(kind), weight.astype("float32"))
        assert y.dtype == kind
        dx, dw = back(jnp.ones_like(y))
        assert (dx.dtype, dw.dtype) == (jnp.dtype(kind), jnp.float32)


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_compute_dtype_rounds_operands_and_keeps_gradients_wide(compute):
    """Case 32: float32 parameters, 16-bit products, float32 gradients that were never rounded to 16 bits."""
    rng = np.random.default_rng(3)
    x, weight = arrays(rng, (2, 5, 5, 9), (3, 3, 9, 7))
    y, back = jax.vjp(lambda x, w: jkc.conv2d(x, w, compute_dtype=compute), x, weight)
    assert y.dtype == jnp.float32
    rounded = [jnp.asarray(v).astype(compute).astype("float32") for v in (x, weight)]
    geometry = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    want = oracle.dense_forward(*rounded, **geometry, output_size=(5, 5))
    slack = oracle.dense_forward(*map(abs, oracle.f64(*rounded)), **geometry, output_size=(5, 5))
    oracle.assert_within_ulp(y, want, slack, "float32", "y")
    (g,) = arrays(rng, y.shape)
    dx, dw = back(g)
    g16 = oracle.f64(g.astype(compute))
    want = oracle.dense_dweight(rounded[0], g16, **geometry, kernel_size=(3, 3))[0]
    slack = oracle.dense_dweight(abs(oracle.f64(rounded[0])), abs(g16), **geometry, kernel_size=(3, 3))[0]
    oracle.assert_within_ulp(dw, want, slack, "float32", "dw")
    want = oracle.dense_dinput(g16, rounded[1], **geometry, input_size=(5, 5))
    slack = oracle.dense_dinput(abs(g16), abs(oracle.f64(rounded[1])), **geometry, input_size=(5, 5))
    oracle.assert_within_ulp(dx, want, slack, "float32", "dx")


def test_same_padding_with_stride():
    """Case 30, along W and along H."""
    weight = jnp.array([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
    for n, want in ((5, [210, 432, 54]), (6, [321, 543, 65])):
        x = jnp.arange(1.0, n + 1).reshape(1, 1, n, 1)
        assert jkc.conv2d(x, weight, stride=(1, 2)).ravel().tolist() == want
        turned = jkc.conv2d(x.reshape(1, n, 1, 1), weight.reshape(3, 1, 1, 1), stride=(2, 1))
        assert turned.ravel().tolist() == want


def test_batch_dimensions_and_bias():
    x, weight, bias = arrays(np.random.default_rng(1), (2, 3, 6, 5, 4), (3, 3, 4, 2), (2,))
    y = jkc.conv2d(x, weight, bias)
    flat = jkc.conv2d(x.reshape(6, 6, 5, 4), weight) + bias
    np.testing.assert_allclose(y.reshape(flat.shape), flat, rtol=1e-6, atol=1e-6)
    assert (np.asarray(jkc.conv2d(x[0, 0], weight, bias)) == np.asarray(y[0, 0])).all(), "the same bits in any batch"


def test_objects_that_say_how_they_become_arrays():
    class Wrapped:
        def __jax_array__(self):
            return jnp.array([2.0, 3.0]).reshape(1, 2, 1)

    y = jkc.conv2d(Wrapped(), [[[[10]]], [[[100]]]], [1], padding=((1, 0), (0, 0)))
    assert y.ravel().tolist() == [201, 301]


@pytest.mark.parametrize("shape", [(0, 8, 8, 3), (2, 0, 8, 3), (2, 8, 8, 0)])
def test_empty(shape):
    """Case 18: right shapes, exact zeros."""
    x, weight = jnp.ones(shape), jnp.ones((3, 3, shape[-1], 5))
    y, back = jax.vjp(lambda x, w: jkc.conv2d(x, w, padding="SAME"), x, weight)
    assert y.shape == (*shape[:3], 5)
    dx, dw = back(jnp.ones_like(y))
    assert dx.shape == shape
    assert dw.shape == weight.shape
    np.testing.assert_array_equal(jkc.conv2d_dinput(jnp.ones_like(y), weight, shape[1:]), dx)
    np.testing.assert_array_equal(jkc.conv2d_dweight(x, jnp.ones_like(y), (3, 3))[0], dw)
    if 0 in shape[:3]:
        assert (np.asarray(dw) == 0).all()
    else:
        assert (np.asarray(y) == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_odd_channels(dtype):
    """Case 19: every pair of odd channel counts, all passes."""
    counts = (1, 2, 3, 5, 7, 9, 17, 33, 63, 65)
    for c, o in itertools.product(counts, counts):
        rng = np.random.default_rng(c * 100 + o)
        x, weight, g = arrays(rng, (1, 3, 2, c), (1, 2, c, o), (1, 3, 2, o), dtype=dtype)
        check(x, weight, g, stride=(1, 1), padding="SAME", dilation=(1, 1), pads=(0, 0))
