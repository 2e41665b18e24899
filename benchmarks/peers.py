"""What people write today: the convolutions that ours are measured against, and ours in the same form.

Each function makes the forward map (x, weight, neighbours) -> y of a shape. All gradients are `jax.vjp` of it, for the
peers as for ours, as a training step takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jax_knnconv as jkc
from benchmarks.shapes import Dense, Shape

Forward = Callable[[Any, Any, Any], jax.Array]


def _precision(x: Any) -> lax.Precision | None:
    # Ours multiplies float32 as float32; a GPU's default for a peer would be TF32.
    return lax.Precision.HIGHEST if x.dtype == jnp.float32 else None


def peer(shape: Shape) -> Forward:
    """XLA's own convolution, or a gather and an einsum."""
    if isinstance(shape, Dense):
        strides = (shape.stride, shape.stride)

        def convolution(x: Any, weight: Any, neighbours: Any) -> jax.Array:
            del neighbours
            return lax.conv_general_dilated(
                x, weight, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=_precision(x)
            )

        return convolution
    return lambda x, weight, indices: jnp.einsum("bmkc,kco->bmo", x[:, indices], weight, precision=_precision(x))


def ours(shape: Shape, implementation: str = "auto") -> Forward:
    """The public operation of the package."""
    if isinstance(shape, Dense):
        return lambda x, weight, _: jkc.conv2d(x, weight, stride=shape.stride, implementation=implementation)
    return lambda x, weight, table: jkc.knn_conv(x, weight, table, implementation=implementation)


def one_pass(forward: Forward, name: str) -> Callable[[Any, Any, Any, Any], jax.Array]:
    """(x, weight, g, neighbours) -> y, dx or dw of a forward map."""
    if name == "forward":
        return lambda x, weight, g, neighbours: forward(x, weight, neighbours)
    if name == "dinput":
        return lambda x, weight, g, neighbours: jax.vjp(lambda x: forward(x, weight, neighbours), x)[1](g)[0]
    if name == "dweight":
        return lambda x, weight, g, neighbours: jax.vjp(lambda w: forward(x, w, neighbours), weight)[1](g)[0]
    raise ValueError(f"pass must be forward, dinput or dweight, got {name!r}")
