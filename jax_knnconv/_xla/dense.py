"""The three passes of conv2d in pure JAX.

    y[b, i, j] = bias + sum over taps (fh, fw): x[b, i*stride + fh*dilation - padding, ...] @ weight[fh, fw]

Operands, results and attributes are those of the handlers (docs/handlers.md), less the workspace. Forward, and dinput
at stride 1, are XLA convolutions. Strided dinput and dweight are loops over taps, each a matrix product: a dilated
convolution would multiply zeros stride**2 times as often as numbers, and XLA's weight gradients neither promise sums in
blocks nor, on a GPU, the same bits twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv._xla.groups import over_groups, present
from jax_knnconv._xla.sums import flatten_batch, matmul, outer_sum, precision_for, round_to, row_blocks, row_sum

Pair = Sequence[int]


def forward(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    output_size: Pair,
    out_dtype: Any,
) -> jax.Array:
    """y = bias + x * weight: x [groups..., batch..., H, W, C], weight [groups..., F_H, F_W, C, O], bias [groups..., O].

    x may be float32 where weight is 16-bit; it is rounded to weight's dtype.
    """

    def one(x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
        images = round_to(flatten_batch(x, 3), weight.dtype)
        y = _convolve(images, weight, stride, padding, dilation, output_size)
        if bias is not None:
            y = y + bias
        return y.reshape(*x.shape[:-3], *y.shape[1:]).astype(out_dtype)

    return over_groups(one, weight.ndim - 4, x, weight, present(bias), loop_if_symbolic=True)


def dinput(
    g: jax.Array,
    weight: jax.Array,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    input_size: Pair,
    out_dtype: Any,
) -> jax.Array:
    """dx[b, i*stride + fh*dilation - padding, ...] = sum over taps and outputs (i, j): g[b, i, j] @ weight[fh, fw]^T.

    g [groups..., batch..., H', W', O], weight [groups..., F_H, F_W, C, O] -> [groups..., batch..., H, W, C].
    """

    def one(g: jax.Array, weight: jax.Array) -> jax.Array:
        images = round_to(flatten_batch(g, 3), weight.dtype)
        # A single window has no stride; the one that is given may be far wider than the image.
        steps = [s if windows > 1 else 1 for s, windows in zip(stride, images.shape[1:3], strict=True)]
        if steps == [1, 1]:
            dx = _dinput_unit_stride(images, weight, padding, dilation, input_size)
        else:
            dx = _dinput_by_taps(images, weight, steps, padding, dilation, input_size)
        return dx.reshape(*g.shape[:-3], *dx.shape[1:]).astype(out_dtype)

    return over_groups(one, weight.ndim - 4, g, weight, loop_if_symbolic=True)


def dweight(
    x: jax.Array,
    g: jax.Array,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    kernel_size: Pair,
    group_rank: int,
    with_bias: bool,
    out_dtype: Any,
    bias_dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """dw[fh, fw] = sum over b, i, j: x[b, i*stride + fh*dilation - padding, ...]^T g[b, i, j]; db = sum of g.

    x [groups..., batch..., H, W, C], g [groups..., batch..., H', W', O] -> (dw [groups..., F_H, F_W, C, O], db
    [groups..., O] or [0] where `with_bias` is false). x may be float32 where g is 16-bit; it is rounded to g's dtype.
    """

    def one(x: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        images = round_to(flatten_batch(x, 3), g.dtype)
        g_blocks = row_blocks(g)
        dw = _dweight_by_taps(images, g_blocks, g.shape[-3:-1], stride, padding, dilation, kernel_size)
        return (dw.astype(out_dtype), row_sum(g_blocks).astype(bias_dtype)) if with_bias else (dw.astype(out_dtype),)

    dw, *db = over_groups(one, group_rank, x, g)
    return dw, db[0] if with_bias else jnp.zeros((0,), bias_dtype)


def _overlap(size: int, start: int, extent: int) -> tuple[slice, tuple[int, int]]:
    """Positions [start, start + extent) of a dimension: what of it exists, and the zeros before and after.

    Slicing instead of negative padding: XLA reads beside the buffer for the latter on a CPU.
    """
    first, last = min(max(start, 0), size), min(max(start + extent, 0), size)
    if last <= first:
        return slice(0, 0), (0, extent)
    return slice(first, last), (first - start, start + extent - last)


def _cover(images: jax.Array, starts: Pair, extents: Pair) -> jax.Array:
    """Pixels [start, start + extent) of H and W of images [B, H, W, C], zero where there are none."""
    (rows, pad_h), (columns, pad_w) = map(_overlap, images.shape[1:3], starts, extents)
    return jnp.pad(images[:, rows, columns], ((0, 0), pad_h, pad_w, (0, 0)))


def _extents(windows: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> list[int]:
    """Pixels that the windows of H and W span."""
    return [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(windows, kernel, stride, dilation, strict=True)]


class _Frame(NamedTuple):
    """What the taps of one dimension read, in boxes of `span` pixels, one a tap: a pixel for every window."""

    first: int  # where the frame begins, counted from the first window's own pixel
    corners: tuple[int, ...]  # where each tap's box begins in the frame
    span: int

    @property
    def extent(self) -> int:
        return self.corners[-1] + self.span


def _frame(windows: int, size: int, padding: int, taps: int, stride: int, dilation: int) -> _Frame:
    """The frame of a dimension whose pixels [padding, padding + size) exist, counted likewise.

    Boxes that meet none of these may lie anywhere beside them, so that no frame is much wider than what exists and a
    box on either side, however wide the dilation is.
    """
    span = (windows - 1) * stride + 1
    corners = [min(max(tap * dilation, padding - span), padding + size) for tap in range(taps)]
    return _Frame(corners[0], tuple(corner - corners[0] for corner in corners), span)


def _convolve(
    images: jax.Array, weight: jax.Array, stride: Pair, padding: Pair, dilation: Pair, output_size: Pair
) -> jax.Array:
    """images [B, H, W, C], weight [F_H, F_W, C, O] -> [B, H', W', O] in fp32."""
    shape = (images.shape[0], *output_size, weight.shape[-1])
    extents = _extents(output_size, weight.shape[:2], stride, dilation)
    (rows, pad_h), (columns, pad_w) = map(_overlap, images.shape[1:3], [-p for p in padding], extents)
    images = images[:, rows, columns]
    if 0 in (*images.shape, *shape, *weight.shape):
        return jnp.zeros(shape, jnp.float32)
    return lax.conv_general_dilated(
        images,
        weight,
        tuple(stride),
        (pad_h, pad_w),
        rhs_dilation=tuple(dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision_for(weight.dtype),
        preferred_element_type=jnp.float32,
    )


def _dinput_unit_stride(g: jax.Array, weight: jax.Array, padding: Pair, dilation: Pair, input_size: Pair) -> jax.Array:
    """The convolution of g with the reversed kernel.

    It is reversed by gathers: XLA takes a convolution by `rev` for cuDNN's own input gradient, which may use atomics.
    """
    kernel = weight.shape[:2]
    for axis, taps in enumerate(kernel):
        weight = jnp.take(weight, jnp.arange(taps - 1, -1, -1), axis=axis)
    low = [(k - 1) * d - p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    return _convolve(g, weight.swapaxes(2, 3), (1, 1), low, dilation, input_size)


def _dinput_by_taps(
    g: jax.Array, weight: jax.Array, stride: Pair, padding: Pair, dilation: Pair, input_size: Pair
) -> jax.Array:
    """A padded dx in residue classes of the stride, [B, H/s, s, W/s, s, C]: each tap adds to a box inside one class."""
    s_h, s_w = stride
    batch, h, w, _ = g.shape
    f_h, f_w, channels, _ = weight.shape
    if 0 in (*g.shape, *weight.shape):
        return jnp.zeros((batch, *input_size, channels), jnp.float32)
    frames = [_frame(*of) for of in zip((h, w), input_size, padding, (f_h, f_w), stride, dilation, strict=True)]
    cells_h, cells_w = (-(-frame.extent // s) for frame, s in zip(frames, stride, strict=True))
    corners_h, corners_w = (jnp.asarray(frame.corners, jnp.int32) for frame in frames)

    def add_tap(tap: jax.Array, dx: jax.Array) -> jax.Array:
        at_h, at_w = corners_h[tap // f_w], corners_w[tap % f_w]
        corner = (0, at_h // s_h, at_h % s_h, at_w // s_w, at_w % s_w, 0)
        matrix = weight.reshape(f_h * f_w, channels, -1)[tap].T
        box = lax.dynamic_slice(dx, corner, (batch, h, 1, w, 1, channels))
        box = box + matmul(g, matrix).reshape(batch, h, 1, w, 1, channels)
        return lax.dynamic_update_slice(dx, box, corner)

    dx = jnp.zeros((batch, cells_h, s_h, cells_w, s_w, channels), jnp.float32)
    dx = lax.fori_loop(0, f_h * f_w, add_tap, dx)
    starts = [p - frame.first for p, frame in zip(padding, frames, strict=True)]
    return _cover(dx.reshape(batch, cells_h * s_h, cells_w * s_w, channels), starts, input_size)


def _dweight_by_taps(
    images: jax.Array,
    g_blocks: jax.Array,
    output_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    kernel: Pair,
) -> jax.Array:
    """images [B, H, W, C], g in blocks of rows -> [F_H, F_W, C, O] in fp32."""
    (s_h, s_w), (f_h, f_w) = stride, kernel
    batch, *sizes, channels = images.shape
    shape = (f_h, f_w, channels, g_blocks.shape[-1])
    if 0 in (*output_size, *images.shape, *shape):
        return jnp.zeros(shape, jnp.float32)
    frames = [_frame(*of) for of in zip(output_size, sizes, padding, kernel, stride, dilation, strict=True)]
    corners_h, corners_w = (jnp.asarray(frame.corners, jnp.int32) for frame in frames)
    starts = [frame.first - p for frame, p in zip(frames, padding, strict=True)]
    images = _cover(images, starts, [frame.extent for frame in frames])

    def product(tap: jax.Array) -> jax.Array:
        corner = (0, corners_h[tap // f_w], corners_w[tap % f_w], 0)
        x = lax.dynamic_slice(images, corner, (batch, *(frame.span for frame in frames), channels))
        return outer_sum(row_blocks(x[:, ::s_h, ::s_w]), g_blocks)

    return lax.map(product, jnp.arange(f_h * f_w)).reshape(shape)
