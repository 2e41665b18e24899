"""The fused cast, bit for bit against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_knnconv as jkc

KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SPECIAL = [
    np.inf,
    -np.inf,
    70000,
    -70000,
    np.nan,
    0.1,
    -0.0,
    0.0,
    6e-8,
    5.9e-8,
    2.98e-8,
    2.99e-8,
    65519.9,
    65520,
    3e38,
    1e-40,
]


def bits(value):
    return np.asarray(value).view(np.uint16)


def clipped(g, kind):
    largest = np.float32(ml_dtypes.finfo(kind).max)
    with np.errstate(over="ignore"):
        return np.where(g > largest, largest, np.where(g < -largest, -largest, g)).astype(kind)


def same(got, want):
    """Equal bits; any NaN equals any NaN of the same kind."""
    nan = np.isnan(np.asarray(want, np.float32))
    np.testing.assert_array_equal(np.isnan(np.asarray(got, np.float32)), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(want)[~nan])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["auto", "xla"])
def test_special_values(kind, implementation):
    """Case 37."""
    values = np.array(SPECIAL, np.float32)
    if implementation == "xla":  # XLA's own conversion may take a float32 subnormal for zero (AVX512_BF16 does)
        values = values[(np.abs(values) == 0) | ~(np.abs(values) < np.finfo(np.float32).smallest_normal)]
    g16, x16 = jkc.cast_operands(values, values, kind, implementation=implementation)
    same(g16, clipped(values, KINDS[kind]))
    with np.errstate(over="ignore"):
        same(x16, values.astype(KINDS[kind]))
    if kind == "float16":
        assert np.asarray(g16)[:5].tolist()[:4] == [65504, -65504, 65504, -65504]
        assert np.isnan(np.asarray(g16)[4])
        assert np.asarray(x16)[2] == np.inf


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_bits_any_length(kind, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    lengths = [data.draw(st.sampled_from([0, 1, 7, 8, 15, 31, 33, 1000, 65537])) for _ in range(2)]
    g, x = (rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32) for n in lengths)
    with np.errstate(all="ignore"):
        g16, x16 = jkc.cast_operands(g, x, kind)
        same(g16, clipped(g, KINDS[kind]))
        same(x16, x.astype(KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_tie(kind):
    """Halfway between neighbours, and one float32 to each side."""
    every = np.arange(2**16, dtype=np.uint16).view(KINDS[kind]).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    middle = ((every[:-1].astype(np.float64) + every[1:]) / 2).astype(np.float32)
    values = np.concatenate(
        [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    )
    g16, _ = jkc.cast_operands(values, values[:0], kind)
    same(g16, clipped(values, KINDS[kind]))


def test_float64_rounds_to_float32_first():
    just_above_half = 1 + 2.0**-11 + 2.0**-40  # float16 alone would round up; float32 first gives a tie, to even
    with jax.enable_x64(True):
        g16, x16 = jkc.cast_operands(np.float64([just_above_half]), np.float64([just_above_half]), "float16")
    assert (g16.item(), x16.item()) == (1, 1)


def test_derivative_is_zero_where_clipped():
    grad = jax.vmap(jax.grad(lambda g: jkc.cast_operands(g, g, "float16")[0].astype("float32")))
    assert grad(jnp.array([1e5, 3.0, -1e5, 65504.0, -65504.0])).tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["auto", "xla"])
def test_cotangents_of_16_bits_are_taken_as_they_are(kind, implementation):
    x, weight, bias = jnp.ones((1, 1, 1, 1), kind), jnp.full((1, 1, 1, 1), 2, kind), jnp.zeros((1,), kind)
    _, back = jax.vjp(lambda *operands: jkc.conv2d(*operands, implementation=implementation), x, weight, bias)
    dx, dw, db = back(jnp.full((1, 1, 1, 1), jnp.inf, kind))
    assert (dx.item(), dw.item(), db.item()) == (np.inf, np.inf, np.inf)
