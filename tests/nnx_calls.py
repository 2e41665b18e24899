"""Runs nnx layers for their tests."""

import jax.numpy as jnp
from flax import nnx


def rngs():
    return nnx.Rngs(0)


def run(layer, x, cotangent, **call):
    """(y, dx, dkernel, dbias or None) of sum(y * cotangent)."""

    def loss(layer, x):
        y = layer(x, **call)
        return (y.astype(jnp.float32) * cotangent.astype(jnp.float32)).sum(), y

    gradient = nnx.grad(loss, argnums=(nnx.DiffState(0, nnx.Param), 1), has_aux=True)
    (dlayer, dx), y = nnx.jit(gradient)(layer, x)
    return y, dx, dlayer["kernel"][...], dlayer["bias"][...] if "bias" in dlayer else None
