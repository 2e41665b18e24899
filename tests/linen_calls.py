"""Runs linen layers for their tests."""

import jax
import jax.numpy as jnp


def run(layer, variables, x, cotangent, **call):
    """(y, dx, dkernel, dbias or None) of sum(y * cotangent)."""

    def loss(variables, x):
        y = layer.apply(variables, x, **call)
        return (y.astype(jnp.float32) * cotangent.astype(jnp.float32)).sum(), y

    (dvariables, dx), y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(variables, x)
    return y, dx, dvariables["params"]["kernel"], dvariables["params"].get("bias")
