"""Few channels under a wide kernel: taps side by side are read as one run, which the border of an image cuts."""

from __future__ import annotations

import numpy as np
import pytest
from handler_calls import (
    BF16,
    assert_close,
    dense_dinput,
    dense_forward,
    flat_pixels,
    flat_slots,
    knn_forward_answer,
    random,
    window_table,
)


@pytest.mark.parametrize(("dtype", "channels"), [(np.float32, 3), (BF16, 6), (np.float16, 3)])
# An image narrower than the kernel has runs that are cut at both ends.
@pytest.mark.parametrize(("size", "stride", "padding"), [((17, 19), 2, 2), ((9, 4), 1, 5), ((5, 30), 1, 3)])
def test_forward(dtype, channels, size, stride, padding):
    rng = np.random.default_rng(0)
    window = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (1, 1)}
    out_size = tuple(-(-n // stride) for n in size)
    x, weight = random(rng, (2, *size, channels), dtype), random(rng, (7, 7, channels, 40), dtype)
    bias = random(rng, (40,), np.float32)
    y = dense_forward(x, weight, out_size, bias, **window)
    table = window_table(size, out_size, (7, 7), **window)
    assert_close(flat_pixels(y), *knn_forward_answer(flat_pixels(x), flat_slots(weight), table, None, bias))


@pytest.mark.parametrize(("dtype", "channels"), [(np.float32, 5), (BF16, 10)])
def test_dinput(dtype, channels):
    """dx of a window without stride is the forward pass of the flipped, transposed kernel."""
    rng = np.random.default_rng(1)
    size, window = (6, 11), {"stride": (1, 1), "padding": (3, 3), "dilation": (1, 1)}
    g, weight = random(rng, (2, *size, channels), dtype), random(rng, (7, 7, 24, channels), dtype)
    dx = dense_dinput(g, weight, size, **window)
    flipped = weight[::-1, ::-1].swapaxes(-1, -2)
    table = window_table(size, size, (7, 7), **window)
    assert_close(flat_pixels(dx), *knn_forward_answer(flat_pixels(g), flat_slots(flipped), table))
