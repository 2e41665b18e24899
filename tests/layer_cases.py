"""Windows, operands and float64 answers for tests of both Flax APIs' layers. Nothing here comes from the package."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import oracle
from jax import lax

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)

# The table of KNN layers.
INDICES = np.array([[0, 3, 9], [5, -1, 2], [-1, 7, -2], [4, 4, 1]])  # of 6 rows: 9, 7 and the negatives are holes
SLOTS = np.array([[0, 1, 4], [3, 2, 0], [0, 1, 2], [1, 1, 3]])

# Two-dimensional windows by name: kernel size and the layer's keywords, in every spelling of padding that Flax has.
WINDOWS = {
    "same": ((3, 3), {}),
    "same, stride 2": ((3, 2), {"strides": 2, "padding": "SAME"}),
    "same lower": ((2, 2), {"padding": "SAME_LOWER"}),
    "valid, none for 1": (
        (2, 3),
        {"padding": "VALID", "strides": None, "kernel_dilation": None, "input_dilation": None},
    ),
    "valid, dilation": ((2, 3), {"padding": "VALID", "kernel_dilation": (2, 1), "strides": (1, 2)}),
    "int": ((3, 3), {"padding": 2, "input_dilation": (1, 1)}),
    "two ints": ((3, 3), {"padding": (1, 2), "use_bias": False}),
    "pairs": ([3, 3], {"padding": [(2, 0), (1, 1)], "strides": [2, 1]}),
    "int and pair": ((3, 3), {"padding": [1, (0, 2)]}),
    "negative pads": ((2, 2), {"padding": ((-1, 1), (0, -2))}),
    "circular": ((3, 4), {"padding": "CIRCULAR", "strides": (2, 1), "kernel_dilation": (2, 1)}),
    "reflect": ((3, 2), {"padding": "REFLECT", "kernel_dilation": (2, 1)}),
}
# XLA:CPU of jaxlib 0.10 reads beyond the image where pads are negative: no reference there.
WINDOWS_FLAX_GETS_RIGHT = tuple(name for name in WINDOWS if name != "negative pads")
CONV_SHAPE, FEATURES = (2, 7, 6, 3), 5  # x of every window above, and its output channels

# Convolutions that Flax keeps: input shape, kernel size and keywords.
FLAX_ONLY = {
    "one dimension": ((2, 8, 3), 3, {}),
    "causal": ((2, 8, 3), (3,), {"padding": "CAUSAL", "kernel_dilation": 2}),
    "three dimensions": ((2, 4, 5, 3, 2), (2, 2, 2), {"padding": "VALID"}),
    "groups": ((2, 5, 5, 6), (3, 3), {"feature_group_count": 3}),
    "input dilation": ((2, 5, 5, 3), (3, 3), {"input_dilation": (2, 1), "padding": ((1, 0), (1, 1))}),
}


def normal(seed: int, *shape: int, dtype=jnp.float32):
    """Standard normal numbers, rounded to a dtype."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


class Answer(NamedTuple):
    """A convolution and its gradients, in float64."""

    y: np.ndarray
    dx: np.ndarray
    dkernel: np.ndarray
    dbias: np.ndarray


def _pair(value):
    return (value, value) if isinstance(value, int) else (1, 1) if value is None else tuple(value)


def _source_pixels(shape, kernel, window):
    """[H_padded, W_padded]: which pixel of the flattened image stands there, -1 for none."""
    stride, dilation = _pair(window.get("strides")), _pair(window.get("kernel_dilation"))
    pixels = np.arange(shape[0] * shape[1]).reshape(shape)
    padding = window.get("padding", "SAME")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if padding in ("CIRCULAR", "REFLECT"):
        pads = [((span - 1) // 2, span // 2) for span in spans]
        return np.pad(pixels, pads, mode={"CIRCULAR": "wrap", "REFLECT": "reflect"}[padding])
    if isinstance(padding, str):
        pads = lax.padtype_to_pads(shape, spans, stride, padding)
    else:
        pads = [_pair(p) for p in _pair(padding)]
    pixels = np.pad(pixels, [(max(low, 0), max(high, 0)) for low, high in pads], constant_values=-1)
    (top, bottom), (left, right) = ([max(-pad, 0) for pad in pair] for pair in pads)
    return pixels[top : pixels.shape[0] - bottom, left : pixels.shape[1] - right]


def dense_answer(x, kernel, bias, window, cotangent=None) -> Answer:
    """The convolution of x [B, H, W, C] in a window of `WINDOWS`; with a cotangent, gradients of sum(y * cotangent)."""
    x, kernel = oracle.f64(x, kernel)
    at = _source_pixels(x.shape[1:3], kernel.shape[:2], window)
    padded = x.reshape(len(x), x.shape[1] * x.shape[2], x.shape[-1])[:, at] * (at >= 0)[..., None]
    geometry = {"stride": _pair(window.get("strides")), "dilation": _pair(window.get("kernel_dilation"))}
    size = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(at.shape, kernel.shape, geometry["dilation"], geometry["stride"], strict=False)
    ]
    y = oracle.dense_forward(padded, kernel, bias, padding=(0, 0), output_size=size, **geometry)
    if cotangent is None:
        return Answer(y, None, None, None)
    g = oracle.f64(cotangent)
    dkernel, dbias = oracle.dense_dweight(padded, g, padding=(0, 0), kernel_size=kernel.shape[:2], **geometry)
    dpadded = oracle.dense_dinput(g, kernel, padding=(0, 0), input_size=at.shape, **geometry)
    dx = np.zeros((len(x), x.shape[1] * x.shape[2], x.shape[-1]))
    for pixel in np.ndindex(at.shape):
        if at[pixel] >= 0:
            dx[:, at[pixel]] += dpadded[:, pixel[0], pixel[1]]
    return Answer(y, dx.reshape(x.shape), dkernel, dbias)


def knn_answer(x, kernel, bias, indices, slots, cotangent, zero_empty_rows=False) -> Answer:
    """The KNN convolution of x [B, N, C] and the gradients of sum(y * cotangent)."""
    y = oracle.knn_forward(x, kernel, indices, slots, bias, zero_empty_rows=zero_empty_rows)
    dx = oracle.knn_dinput(cotangent, kernel, indices, slots, num_inputs=x.shape[1])
    dkernel, dbias = oracle.knn_dweight(
        x, cotangent, indices, slots, num_slots=len(kernel), zero_empty_rows=zero_empty_rows
    )
    return Answer(y, dx, dkernel, dbias)


def assert_answers(actual, exact: Answer, products: Answer, dtypes) -> None:
    """Results and gradients are of their dtypes and within one rounding, and the slack of fp32 sums, of the exact ones.

    Args:
        actual: (y, dx, dkernel, dbias or None).
        exact: the float64 answers.
        products: the answers for absolute values of all operands.
        dtypes: those of the four.
    """
    for what, value, right, sums, dtype in zip(Answer._fields, actual, exact, products, dtypes, strict=True):
        if value is not None:
            # Sums of up to 84 terms here: sqrt(84) roundings of half an eps32 are below 5 times the slack for one.
            oracle.assert_within_ulp(value, right, 5 * sums, dtype, what)


def magnitudes(*arrays):
    """Absolute values in float64; None stays."""
    return tuple(None if a is None else np.abs(oracle.f64(a)) for a in arrays)
