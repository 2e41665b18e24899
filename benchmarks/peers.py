"""What people write today: the convolutions that ours are measured against, and ours in the same form.

Each function makes the forward map (x, weight, neighbours) -> y of a shape. All gradients are `jax.vjp` of it, for the
peers as for ours, as a training step takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import jax_knnconv as jkc
from benchmarks.shapes import Dense, Knn, Shape

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


def ours(shape: Shape, implementation: str = "auto", kernel: str | None = None) -> Forward:
    """The public operation of the package; with a kernel, forced to that one."""
    config = None if kernel is None else jkc.KernelConfig(kernel=kernel)
    if isinstance(shape, Dense):
        return lambda x, weight, _: jkc.conv2d(
            x, weight, stride=shape.stride, implementation=implementation, config=config
        )
    return lambda x, weight, table: jkc.knn_conv(x, weight, table, implementation=implementation, config=config)


def one_pass(forward: Forward, name: str) -> Callable[[Any, Any, Any, Any], jax.Array]:
    """(x, weight, g, neighbours) -> y, dx or dw of a forward map."""
    if name == "forward":
        return lambda x, weight, g, neighbours: forward(x, weight, neighbours)
    if name == "dinput":
        return lambda x, weight, g, neighbours: jax.vjp(lambda x: forward(x, weight, neighbours), x)[1](g)[0]
    if name == "dweight":
        return lambda x, weight, g, neighbours: jax.vjp(lambda w: forward(x, w, neighbours), weight)[1](g)[0]
    raise ValueError(f"pass must be forward, dinput or dweight, got {name!r}")


class Product(NamedTuple):
    """A matrix product of as many operations as a pass.

    Attributes:
      arrange: (x, weight, g, indices) -> (left, right); its time does not count.
      multiply: (left, right) -> their product.
    """

    arrange: Callable[..., tuple[jax.Array, jax.Array]]
    multiply: Callable[[Any, Any], jax.Array]


def gathered_product(shape: Knn, name: str) -> Product:
    """The matrix product that a pass would be if its gathered matrix were there already, free of charge.

    forward: [B·M, K·C] @ [K·C, O]. dweight: [K·C, B·M] @ [B·M, O]. dinput: [B·M, K·O] @ [K·O, C], each row of g taken K
    times as in forward each row of x is.
    """

    def gather(values: Any, indices: Any) -> Any:
        return values[:, indices].reshape(-1, shape.neighbours * values.shape[-1])

    def multiply(left: Any, right: Any) -> jax.Array:
        return jnp.matmul(left, right, precision=_precision(left))

    if name == "forward":
        return Product(
            lambda x, weight, g, indices: (gather(x, indices), weight.reshape(-1, shape.outputs)),
            multiply,
        )
    if name == "dinput":
        return Product(
            lambda x, weight, g, indices: (
                gather(g, indices % shape.rows),
                jnp.swapaxes(weight, 1, 2).reshape(-1, shape.channels),
            ),
            multiply,
        )
    return Product(
        lambda x, weight, g, indices: (gather(x, indices), g.reshape(-1, shape.outputs)),
        lambda left, right: multiply(left.T, right),
    )
