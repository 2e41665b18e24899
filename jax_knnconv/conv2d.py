"""Dense two-dimensional convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_knnconv import _checks, _dtypes, _window
from jax_knnconv._dense import dense
from jax_knnconv._differentiable import Static, convolve_jit, evaluate_jit, prepare_cotangent
from jax_knnconv._specs import DenseSpec
from jax_knnconv._varying import vary_together
from jax_knnconv.config import KernelConfig

Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]
_X, _WEIGHT, _G = "[..., H, W, C_in]", "[F_H, F_W, C_in, C_out]", "[..., H', W', C_out]"


def _spec(
    input_dims: Sequence[int],
    kernel: Sequence[int],
    stride: Any,
    padding: Any,
    dilation: Any,
    implementation: Any,
    config: Any,
) -> DenseSpec:
    stride, dilation = _checks.pair("stride", stride), _checks.pair("dilation", dilation)
    for name, sizes, least in (("the image's (H, W)", input_dims, 0), ("the kernel's (F_H, F_W)", kernel, 1)):
        if not all(isinstance(size, int) and size >= least for size in sizes):
            raise ValueError(f"{name}: got {tuple(sizes)}, expected static sizes of at least {least}")
    pads = _window.resolve_padding(padding, input_dims, kernel, stride, dilation)
    output = tuple(
        _window.output_size(size, taps, step, spread, pad)
        for size, taps, step, spread, pad in zip(input_dims, kernel, stride, dilation, pads, strict=True)
    )
    return DenseSpec(
        input_dims=(int(input_dims[0]), int(input_dims[1])),
        output_dims=(output[0], output[1]),
        slot_dims=(int(kernel[0]), int(kernel[1])),
        stride=stride,
        padding=(pads[0][0], pads[1][0]),
        dilation=dilation,
        implementation=_checks.implementation(implementation),
        config=_checks.config(config),
    )


def conv2d(
    x: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike,
    bias: jax.typing.ArrayLike | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "SAME",
    dilation: int | tuple[int, int] = 1,
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
    forward_mode: bool = False,
) -> jax.Array:
    r"""y[b, i, j, o] = bias[o] + sum over fh, fw, c of x[b, i·s + fh·d − p, j·s + fw·d − p, c] · weight[fh, fw, c, o].

    Equals ``lax.conv_general_dilated(x, weight, stride, padding, rhs_dilation=dilation, dimension_numbers=("NHWC",
    "HWIO", "NHWC"))``. Positions outside the image read nothing.

    Sums are float32 and rounded once to the output's dtype. ``weight`` is rounded to the compute dtype: that of ``x``,
    unless ``compute_dtype`` names one. The output has ``x``'s dtype unless ``preferred_element_type`` says otherwise;
    with float32 ``x`` and 16-bit ``compute_dtype`` it is float32. Integers, bool and float64 are rounded to float32
    first. Gradients have the dtypes of ``x``, ``weight``, ``bias``, each rounded once from float32; a float32 cotangent
    of a 16-bit product is clipped to the finite range of the compute dtype (`cast_operands`). Same shapes give same
    bits, every run.

    Args:
        x: [..., H, W, C_in]; any number of batch dimensions.
        weight: [F_H, F_W, C_in, C_out].
        bias: [C_out], added in float32.
        stride: one positive int or (height, width).
        padding: "SAME", "SAME_LOWER", "VALID", an int, (height, width), or ((low, high), (low, high)); explicit pads
            may be negative.
        dilation: of the kernel; one positive int or (height, width).
        compute_dtype: float16, bfloat16 or float32; None: the dtype of ``x``.
        preferred_element_type: dtype of the output.
        precision: accepted as in ``jax.lax``; sums are at least as precise as any setting asks.
        implementation: "auto", "xla", "cpu", "wmma" or "hopper". One that cannot run gives one warning and "xla".
        config: which tensor-core kernel runs and its tile; gradients follow it too.
        forward_mode: evaluate without the ``custom_vjp``, so that ``jax.jvp``, ``jacfwd``, ``linearize`` and
            ``linear_transpose`` work. Reverse mode works too, but rounds dw of a float32 weight with 16-bit products
            through the compute dtype.

    Returns:
        [..., H', W', C_out].

    Raises:
        ValueError: shapes, window or options that do not fit, at trace time.
        TypeError: dtypes that do not fit.
    """
    x, weight = _dtypes.as_operand("x", x), _dtypes.as_operand("weight", weight)
    bias = None if bias is None else _dtypes.as_operand("bias", bias)
    _checks.rank("x", x, 3, _X)
    _checks.exact_rank("weight", weight, 4, _WEIGHT)
    _checks.same(
        "x's channels (its last dimension)", x.shape[-1], "weight's C_in (its third dimension)", weight.shape[2]
    )
    _checks.bias(bias, weight.shape[-1])
    dtypes = _dtypes.resolve({"x": x, "weight": weight}, compute_dtype, preferred_element_type, precision)
    spec = _spec(x.shape[-3:-1], weight.shape[:2], stride, padding, dilation, implementation, config)
    static = Static(dense, spec, dtypes.compute, dtypes.out, 0)
    images, kernel, offset = vary_together(x, weight, bias)
    return (evaluate_jit if forward_mode else convolve_jit)(static, images, kernel, offset, ())


def conv2d_dinput(
    g: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike,
    input_shape: Sequence[int],
    *,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "SAME",
    dilation: int | tuple[int, int] = 1,
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
) -> jax.Array:
    """dx[b, h, w, :] = sum over taps (fh, fw) by which outputs (i, j) read (h, w) of weight[fh, fw] @ g[b, i, j, :].

    The gradient of `conv2d` in x, itself a convolution: gathered, with no scatter and no atomics.

    Args:
        g: [..., H', W', C_out], the cotangent of y.
        weight: [F_H, F_W, C_in, C_out].
        input_shape: shape of x, or its (H, W, C_in).
        stride: as in `conv2d`.
        padding: as in `conv2d`.
        dilation: as in `conv2d`.
        compute_dtype: as in `conv2d`, of ``g`` here; a float32 ``g`` is clipped to its finite range.
        preferred_element_type: dtype of dx; None: that of ``g``.
        precision: as in `conv2d`.
        implementation: as in `conv2d`.
        config: as in `conv2d`.

    Returns:
        dx, [..., H, W, C_in].

    Raises:
        ValueError: shapes, window or options that do not fit.
        TypeError: dtypes that do not fit.
    """
    g, weight = _dtypes.as_operand("g", g), _dtypes.as_operand("weight", weight)
    _checks.rank("g", g, 3, _G)
    _checks.exact_rank("weight", weight, 4, _WEIGHT)
    _checks.same(
        "g's channels (its last dimension)", g.shape[-1], "weight's C_out (its last dimension)", weight.shape[3]
    )
    height, width, channels = _trailing("input_shape", input_shape, g.shape[:-3], 3)
    _checks.same("input_shape's channels", channels, "weight's C_in (its third dimension)", weight.shape[2])
    spec = _spec((height, width), weight.shape[:2], stride, padding, dilation, implementation, config)
    _checks.same("g's (H', W')", tuple(g.shape[-3:-1]), "the output size of this window", spec.output_dims)
    dtypes = _dtypes.resolve({"g": g, "weight": weight}, compute_dtype, preferred_element_type, precision)
    cotangent, kernel = vary_together(g, weight)
    return dense.dinput(cotangent, kernel.astype(dtypes.compute), (), spec=spec, out_dtype=dtypes.out)


def conv2d_dweight(
    x: jax.typing.ArrayLike,
    g: jax.typing.ArrayLike,
    kernel_shape: Sequence[int],
    *,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "SAME",
    dilation: int | tuple[int, int] = 1,
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
) -> tuple[jax.Array, jax.Array]:
    """dw[fh, fw, c, o] = sum over b, i, j of x[b, i·s + fh·d − p, j·s + fw·d − p, c] · g[b, i, j, o]; db[o] = sum of g.

    The gradients of `conv2d` in weight and bias, from one pass over x and g.

    Args:
        x: [..., H, W, C_in].
        g: [..., H', W', C_out], the cotangent of y, same batch dimensions.
        kernel_shape: shape of weight, or its (F_H, F_W).
        stride: as in `conv2d`.
        padding: as in `conv2d`.
        dilation: as in `conv2d`.
        compute_dtype: as in `conv2d`; a float32 ``g`` is clipped to its finite range.
        preferred_element_type: dtype of dw and db; None: that of ``x``.
        precision: as in `conv2d`.
        implementation: as in `conv2d`.
        config: as in `conv2d`.

    Returns:
        (dw [F_H, F_W, C_in, C_out], db [C_out]).

    Raises:
        ValueError: shapes, window or options that do not fit.
        TypeError: dtypes that do not fit.
    """
    x, g = _dtypes.as_operand("x", x), _dtypes.as_operand("g", g)
    _checks.rank("x", x, 3, _X)
    _checks.rank("g", g, 3, _G)
    kernel = _checks.entries("kernel_shape", kernel_shape)
    if len(kernel) == 4:
        _checks.same("kernel_shape's (C_in, C_out)", kernel[2:], "the channels of x and g", (x.shape[-1], g.shape[-1]))
        kernel = kernel[:2]
    kernel = _checks.sizes("kernel_shape", kernel, 2)
    _checks.same("g's batch dimensions", tuple(g.shape[:-3]), "x's", tuple(x.shape[:-3]))
    spec = _spec(x.shape[-3:-1], kernel, stride, padding, dilation, implementation, config)
    _checks.same("g's (H', W')", tuple(g.shape[-3:-1]), "the output size of this window", spec.output_dims)
    dtypes = _dtypes.resolve({"x": x, "g": g}, compute_dtype, preferred_element_type, precision)
    images, cotangent = vary_together(x, g)
    cotangent, images = prepare_cotangent(cotangent, images, dtypes.compute, implementation)
    dw, db = dense.dweight(images, cotangent, (), spec=spec, out_dtype=dtypes.out, with_bias=True)
    return dw, db.astype(dtypes.out)


def _trailing(name: str, shape: Any, batch: Sequence[Any], count: int) -> tuple[int, ...]:
    """The last dimensions of a shape given whole or without its batch dimensions."""
    shape = _checks.entries(name, shape)
    if len(shape) not in (count, count + len(batch)) or (len(shape) > count and shape[:-count] != tuple(batch)):
        expected = f"{count} sizes, or the batch dimensions {tuple(batch)} and {count} sizes"
        raise ValueError(f"{name}: got {shape}, expected {expected}")
    return _checks.sizes(name, shape[-count:], count)
