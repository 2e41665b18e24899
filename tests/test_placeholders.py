"""Placeholders of absent operands (a bias, slots) never leave the trace that they belong to.

A constant of size 0 in the body of a shard_map, or a residual of that size, crashes the compiler of jaxlib 0.11.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_knnconv as jkc

TABLE = jkc.NeighborTable([[0, 3, 1], [2, 2, -1]], num_inputs=4)
X, W, G = jnp.ones((2, 4, 3)), jnp.ones((3, 3, 5)), jnp.ones((2, 2, 5))
IMAGE, KERNEL = jnp.ones((2, 4, 4, 3)), jnp.ones((3, 3, 3, 5))

CALLS = {
    "forward": lambda: jkc.knn_conv(X, W, TABLE),
    "forward mode": lambda: jkc.knn_conv(X, W, TABLE, forward_mode=True),
    "gradient": lambda: jax.grad(lambda x, w: jkc.knn_conv(x, w, TABLE).sum(), (0, 1))(X, W),
    "dinput": lambda: jkc.knn_dinput(G, W, TABLE),
    "dweight": lambda: jkc.knn_dweight(X, G, TABLE),
    "backward": lambda: jkc.knn_backward(G, X, W, TABLE),
    "dense forward": lambda: jkc.conv2d(IMAGE, KERNEL),
    "dense gradient": lambda: jax.grad(lambda x, w: jkc.conv2d(x, w).sum(), (0, 1))(IMAGE, KERNEL),
}


def constants(closed):
    """All constants of a traced program and of those inside it."""
    yield from closed.consts
    for eqn in closed.jaxpr.eqns:
        yield from (var.val for var in eqn.invars if hasattr(var, "val"))
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: isinstance(v, (ClosedJaxpr, Jaxpr))):
            if isinstance(value, ClosedJaxpr):
                yield from constants(value)
            elif isinstance(value, Jaxpr):
                yield from constants(ClosedJaxpr(value, ()))


@pytest.mark.parametrize("name", CALLS)
def test_no_empty_constant_in_a_traced_program(name):
    found = list(constants(jax.make_jaxpr(CALLS[name])()))
    assert found, "the operands are constants here"
    assert not [value for value in found if np.size(value) == 0]


@pytest.mark.parametrize("name", ["knn", "dense"])
def test_no_empty_residual_of_a_shard_map(name):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    if name == "knn":
        operands, call = (X, W), lambda x, w: jkc.knn_conv(x, w, TABLE)
    else:
        operands, call = (IMAGE, KERNEL), lambda x, w: jkc.conv2d(x, w)
    sharded = jax.shard_map(call, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    _, pullback = jax.vjp(sharded, *operands)
    assert not [leaf for leaf in jax.tree.leaves(pullback) if np.size(leaf) == 0]
