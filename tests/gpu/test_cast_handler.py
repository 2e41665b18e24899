"""The fused cast on the GPU, bit for bit against NumPy and ml_dtypes (case 37)."""

import gpu_dweight_calls
import ml_dtypes
import numpy as np
import pytest
from gpu_calls import BF16, F16

SPECIAL = [np.inf, -np.inf, 7e4, -7e4, 65504, 65519.9, 65520, 0.1, -0.1, 0, -0.0, 6e-8, 3e-8, 1e-40, 3.4e38, -3.4e38]


def _values(size):
    rng = np.random.default_rng(size)
    bits = rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)  # every exponent, NaN and subnormals
    values = np.where(rng.random(size) < 0.5, bits, rng.standard_normal(size).astype(np.float32))
    special = np.array([*SPECIAL, np.nan], np.float32)[:size]
    values[: len(special)] = special
    return values


def _assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint16), expected[~nan].view(np.uint16))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("sizes", [(2048, 2048), (1, 0), (0, 7), (2049, 8), (4095, 2047), (33, 100_003)], ids=str)
def test_bits(dtype, sizes):
    g, x = _values(sizes[0]), _values(sizes[1])
    g16, x16 = gpu_dweight_calls.cast_operands(g, x, dtype)
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    with np.errstate(over="ignore", invalid="ignore"):
        _assert_same_bits(g16, np.where(np.isnan(g), g, np.clip(g, -largest, largest)).astype(dtype))
        _assert_same_bits(x16, x.astype(dtype))


def test_shapes_are_kept():
    g, x = np.ones((2, 3, 5), np.float32), np.full((4, 1), 7e4, np.float32)
    g16, x16 = gpu_dweight_calls.cast_operands(g, x, F16)
    np.testing.assert_array_equal(g16, np.ones((2, 3, 5), np.float16))
    np.testing.assert_array_equal(x16, np.full((4, 1), np.inf, np.float16))
