"""The CPU target cast_operands, held to NumPy and ml_dtypes bit by bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax_knnconv._ffi import load_backend, target_name

pytestmark = pytest.mark.skipif(load_backend("cpu").module is None, reason="the CPU module is not built")

DTYPES = [np.float16, ml_dtypes.bfloat16]


def cast_operands(g, x, dtype):
    results = [jax.ShapeDtypeStruct(a.shape, dtype) for a in (g, x)]
    return [np.asarray(r) for r in jax.ffi.ffi_call(target_name("cast_operands"), results)(g, x)]


def rounded(x, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype)


def clipped(g, dtype):
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    return rounded(np.where(np.isnan(g), g, np.clip(g, -largest, largest)), dtype)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


def test_values_of_the_cases():
    g = np.array([np.inf, -np.inf, 70000, -70000, np.nan, 0.1, 6e-8, -1e-7, 0.0, -0.0, 65519], np.float32)
    x = np.array([70000, np.nan, -70000, 65519.99, 65520, 2.0**-25, 3e-8, -0.0], np.float32)
    g16, x16 = cast_operands(g, x, np.float16)
    top, tiny = 65504.0, 2.0**-24
    want = [top, -top, top, -top, np.nan, np.float16(0.1), tiny, -2 * tiny, 0, -0.0, top]
    assert_same_bits(g16, np.array(want, np.float16))
    assert_same_bits(x16, np.array([np.inf, np.nan, -np.inf, top, np.inf, 0, tiny, -0.0], np.float16))
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    g16, x16 = cast_operands(np.array([np.inf, -3.4e38], np.float32), np.float32([3.4e38, 70000]), jnp.bfloat16)
    assert_same_bits(g16, np.array([largest, -largest], ml_dtypes.bfloat16))
    assert_same_bits(x16, np.array([np.inf, 70144], ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_exponent_and_every_tie(dtype):
    """Around each 16-bit value: the value, both sides of the midpoint to the next one, and the midpoint itself."""
    high = np.arange(2**16, dtype=np.uint32)
    if dtype == np.float16:
        values = high.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
        half = np.uint32(1 << 12)
    else:
        values, half = high << 16, np.uint32(1 << 15)
    bits = np.concatenate([values, values + half - 1, values + half, values + half + 1, values + 1])
    inputs = bits.view(np.float32)
    got_g, got_x = cast_operands(inputs, inputs, dtype)
    assert_same_bits(got_x, rounded(inputs, dtype))
    assert_same_bits(got_g, clipped(inputs, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("g_size", "x_size"), [(0, 0), (0, 5), (7, 0), (1, 1), (1023, 1025), (65536, 65537), (200_001, 131_071)]
)
def test_lengths(dtype, g_size, x_size):
    rng = np.random.default_rng(g_size)
    g = rng.integers(0, 2**32, g_size, dtype=np.uint32).view(np.float32)
    x = rng.integers(0, 2**32, x_size, dtype=np.uint32).view(np.float32)
    got_g, got_x = cast_operands(g, x, dtype)
    assert_same_bits(got_g, clipped(g, dtype))
    assert_same_bits(got_x, rounded(x, dtype))


def test_any_shape():
    g, x = np.ones((2, 0, 3), np.float32), np.full((2, 3, 4, 5), 1e-3, np.float32)
    got_g, got_x = cast_operands(g, x, jnp.bfloat16)
    assert got_g.shape == g.shape
    assert_same_bits(got_x, rounded(x, ml_dtypes.bfloat16))
