"""vmap over every subset of (x, table, weight), the mapped axis sharded over 8 devices: nothing gathered, one call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_cases import C_IN, C_OUT, KINDS, M, N, all_reduces, close, collectives, mesh_of
from test_vmap import SUBSETS, count

import jax_knnconv as jkc

SIZE, BATCH, K, V = 8, 2, 3, 5
RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(s).astype("float32") for s in ((SIZE, BATCH, N, C_IN), (SIZE, V, C_IN, C_OUT)))
INDICES, SLOTS = RNG.integers(-1, N + 1, (SIZE, M, K)), RNG.integers(0, V, (SIZE, M, K))


def examples(axes):
    """(y, dx, dw) of every example in float64, of the loss below."""
    found = []
    for i in range(SIZE):
        x, indices, slots, w = (
            array[i if axis == 0 else 0]
            for array, axis in zip((X, INDICES, SLOTS, W), (axes[0], axes[1], axes[1], axes[2]), strict=True)
        )
        y = oracle.knn_forward(x, w, indices, slots)
        dx = oracle.knn_dinput(y, w, indices, slots, num_inputs=N)
        found.append((y, dx, oracle.knn_dweight(x, y, indices, slots, num_slots=V)[0]))
    return [np.stack(parts) for parts in zip(*found, strict=True)]


def operands(axes, mesh):
    x, w = (array if axis == 0 else array[0] for array, axis in ((X, axes[0]), (W, axes[2])))
    which = slice(None) if axes[1] == 0 else 0
    table = jkc.NeighborTable(INDICES[which], SLOTS[which], num_inputs=N, num_slots=V)
    placed = zip((jnp.asarray(x), table, jnp.asarray(w)), axes, strict=True)
    return [jax.device_put(v, NamedSharding(mesh, P("data") if axis == 0 else P())) for v, axis in placed]


def loss(x, table, w):
    y = jkc.knn_conv(x, w, table)
    return (y**2).sum() / 2, y  # its cotangent is y itself


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_mapped_axis_sharded(kind, axes):
    mesh = mesh_of(kind)
    y, dx, dw = examples(axes)

    def total(*args):
        losses, y = jax.vmap(loss, axes)(*args)
        return losses.sum(), y

    with jax.set_mesh(mesh):
        args = operands(axes, mesh)
        each = jax.jit(jax.vmap(jax.grad(loss, (0, 2), has_aux=True), axes)).lower(*args).compile()
        summed = jax.jit(jax.grad(total, (0, 2), has_aux=True)).lower(*args).compile()
        own, over_all = each(*args), summed(*args)
    assert collectives(each.as_text()) == {}
    close(own, ((dx, dw), y))
    # The gradient of what is not mapped is a sum over the mapped axis, and with it over the devices.
    assert collectives(summed.as_text()) == all_reduces(int(None in (axes[0], axes[2])))
    close(over_all, ((dx if axes[0] == 0 else dx.sum(0), dw if axes[2] == 0 else dw.sum(0)), y))
    for compiled in (each, summed):
        assert count(compiled) == {"forward": 1, "dinput": 1, "dweight": 1}
    sharding = NamedSharding(mesh, P("data"))
    for value in jax.tree.leaves(own):
        assert value.sharding.is_equivalent_to(sharding, value.ndim)
