"""The passes of the pure-JAX implementation's tables in one call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle

from jax_knnconv._xla import knn

DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16]
UNIT = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


@functools.partial(jax.jit, static_argnames=("zero_empty_rows", "out_dtype"))
def jitted_passes(x, weight, g, bias, indices, slots, orders, *, zero_empty_rows, out_dtype):
    y = knn.forward(x, weight, bias, indices, slots, zero_empty_rows=zero_empty_rows, out_dtype=out_dtype)
    dx = knn.dinput(g, weight, *orders[:3], num_inputs=x.shape[1], out_dtype=out_dtype)
    options = {"num_slots": weight.shape[0], "zero_empty_rows": zero_empty_rows, "with_bias": True, "group_rank": 0}
    slot_order = (None, None, None) if slots is None else orders[3:]
    dtypes = {"out_dtype": out_dtype, "bias_dtype": jnp.float32}
    return y, dx, *knn.dweight(x, g, indices, slots, *slot_order, **options, **dtypes)


def knn_passes(x, weight, indices, slots=None, bias=None, g=None, *, zero_empty_rows=False, dtype=jnp.float32):
    """(y, dx, dw, db) for x [B, N, C]; the cotangent g is ones where not given."""
    indices = np.asarray(indices, np.int32)
    slots = None if slots is None else np.asarray(slots, np.int32)
    x, weight = jnp.asarray(x, dtype), jnp.asarray(weight, dtype)
    orders = oracle.table_orders(indices, slots, x.shape[1], weight.shape[0])
    g = jnp.ones((x.shape[0], len(indices), weight.shape[2]), dtype) if g is None else jnp.asarray(g, dtype)
    return jitted_passes(
        x, weight, g, bias, indices, slots, orders, zero_empty_rows=zero_empty_rows, out_dtype=np.dtype(dtype)
    )
