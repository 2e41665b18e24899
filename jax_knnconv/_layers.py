"""What the layers of both Flax APIs share: which call takes which convolution, in which dtypes, and default kernels.

Nothing here needs Flax: a layer is read by the attribute names that Flax gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jax_knnconv import _checks, _dtypes
from jax_knnconv.conv2d import conv2d
from jax_knnconv.knn import knn_conv
from jax_knnconv.table import NeighborTable

INSTALL = "needs Flax, which is not installed: pip install flax"

Initializer = Callable[..., jax.Array]

_FLOATS = tuple(jnp.dtype(t) for t in (jnp.float32, jnp.float16, jnp.bfloat16))
# Flax pads these itself, with values of the input, and then convolves without padding.
_PAD_MODES = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


class Layer(Protocol):
    """What both kinds of layer say about their call."""

    dtype: Any
    precision: Any
    implementation: str
    config: Any


class ConvLayer(Layer, Protocol):
    """The window of a dense layer, as Flax names its parts."""

    kernel_size: Any
    strides: Any
    padding: Any
    input_dilation: Any
    kernel_dilation: Any
    feature_group_count: int
    mask: Any


class KnnLayer(Layer, Protocol):
    """What a KNN layer adds."""

    empty_rows: str
    preferred_element_type: Any


def kernel_size(layer: ConvLayer) -> tuple[int, ...]:
    """One size a spatial dimension; a bare int is that of a one-dimensional kernel."""
    return (layer.kernel_size,) if isinstance(layer.kernel_size, int) else tuple(layer.kernel_size)


def is_dense_2d(layer: ConvLayer) -> bool:
    """Whether a layer's window is one that `conv2d` has: two dimensions, one feature group, no input dilation.

    CAUSAL has no meaning in two dimensions: Flax is left to say so.
    """
    dilation = layer.input_dilation if isinstance(layer.input_dilation, (tuple, list)) else (layer.input_dilation,)
    return (
        len(kernel_size(layer)) == 2
        and layer.feature_group_count == 1
        and all(step in (None, 1) for step in dilation)
        and not (isinstance(layer.padding, str) and layer.padding == "CAUSAL")
    )


def promoted_dtype(layer: Layer, *operands: Any) -> Any:
    """The dtype in which Flax computes: the layer's own, or what inputs and parameters promote to, never an integer.

    Operands are arrays, dtypes, or None for one that is absent.
    """
    if layer.dtype is not None:
        return jnp.dtype(layer.dtype)
    dtype = jnp.result_type(*(operand for operand in operands if operand is not None))
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.promote_types(jnp.float32, dtype)


def has_kernels(dtype: Any) -> bool:
    """Whether the package's operations compute in a dtype."""
    return dtype in _FLOATS


def convolve_dense(
    layer: ConvLayer, inputs: Any, kernel: Any, bias: Any, dtype: Any, preferred_element_type: Any = None
) -> jax.Array:
    """`conv2d` of a layer for which `is_dense_2d` holds, computed in `dtype`."""
    _checks.rank("inputs", inputs, 3, "[..., H, W, C_in]")
    if layer.mask is not None:
        _checks.same("mask's shape", tuple(layer.mask.shape), "the kernel's", tuple(kernel.shape))
        kernel = kernel * layer.mask
    stride = _checks.pair("strides", 1 if layer.strides is None else layer.strides)
    dilation = _checks.pair("kernel_dilation", 1 if layer.kernel_dilation is None else layer.kernel_dilation)
    padding = layer.padding
    if isinstance(padding, str) and padding in _PAD_MODES:
        spans = [(size - 1) * step + 1 for size, step in zip(kernel.shape[:2], dilation, strict=True)]
        pads = [(0, 0)] * (inputs.ndim - 3) + [((span - 1) // 2, span // 2) for span in spans] + [(0, 0)]
        inputs, padding = jnp.pad(inputs, pads, mode=_PAD_MODES[padding]), "VALID"
    _check_channels(inputs, kernel)
    inputs, kernel, bias = _castable(dtype, inputs, kernel, bias)
    return conv2d(
        inputs,
        kernel,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        compute_dtype=dtype,
        preferred_element_type=dtype if preferred_element_type is None else preferred_element_type,
        precision=layer.precision,
        implementation=layer.implementation,
        config=layer.config,
    )


def convolve_table(layer: KnnLayer, inputs: Any, kernel: Any, bias: Any, table: NeighborTable) -> jax.Array:
    """`knn_conv` of a layer, computed in the dtype that Flax's layers would compute in."""
    dtype = promoted_dtype(layer, inputs, kernel, bias)
    if layer.dtype is None and dtype == jnp.float64:
        dtype = jnp.dtype(jnp.float32)
    dtype = _dtypes.check_dtype("dtype (or what inputs and parameters promote to)", dtype)
    _checks.rank("inputs", inputs, 2, "[..., N, C_in]")
    _checks.same("the table's num_slots", table.num_slots, "the layer's", kernel.shape[0])
    _check_channels(inputs, kernel)
    inputs, kernel, bias = _castable(dtype, inputs, kernel, bias)
    return knn_conv(
        inputs,
        kernel,
        table,
        bias,
        empty_rows=layer.empty_rows,
        compute_dtype=dtype,
        preferred_element_type=dtype if layer.preferred_element_type is None else layer.preferred_element_type,
        precision=layer.precision,
        implementation=layer.implementation,
        config=layer.config,
    )


def _check_channels(inputs: Any, kernel: Any) -> None:
    """Inputs of as many channels as the layer was made for, told in a layer's words."""
    _checks.same("inputs' channels (their last dimension)", inputs.shape[-1], "in_features", kernel.shape[-2])


def _castable(dtype: Any, *operands: Any) -> Iterator[Any]:
    """Operands in dtypes that the operations take together when they compute in `dtype`.

    Float32 operands of 16-bit products and 16-bit operands of float32 products stay as they are: the operation rounds
    them itself, and so gives gradients of their dtype that were never rounded to another.
    """
    single = jnp.dtype(jnp.float32)
    for operand in operands:
        if operand is None:
            yield None
        elif operand.dtype in _FLOATS and (operand.dtype == dtype or single in (operand.dtype, dtype)):
            yield operand
        else:
            yield operand.astype(dtype)


def choose_table(given: Any, own: Any) -> NeighborTable:
    """The table of a call: the one given to it, else the layer's own."""
    table = own if given is None else given
    if table is None:
        raise ValueError(
            "table: got none, neither when the layer was constructed nor in this call; expected a NeighborTable in one "
            "of the two places"
        )
    return _checks.table(table)


def knn_kernel_init(num_taps: int) -> Initializer:
    """LeCun's normal initializer for a kernel [V, C_in, C_out] whose slots K = num_taps taps a row choose from.

    An output is a sum of K·C_in products however many slots V they choose from, so the variance is 1 / (K·C_in): that
    of Flax's default for a dense kernel of K taps. It is read from the table's shape alone; holes count, as the pixels
    that SAME padding adds do.
    """

    def init(key: Any, shape: Any, dtype: Any = jnp.float32, **options: Any) -> jax.Array:
        if num_taps == 0 or 0 in shape:
            return jnp.zeros(shape, dtype)
        # The initializer takes the fan-in to be V·C_in.
        scale = shape[0] / num_taps
        return jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")(key, shape, dtype, **options)

    return init
