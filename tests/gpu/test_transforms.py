"""Transformations on GPU kernels: pairs, higher derivatives, and vmap over every subset of operands in one call.

Operands are small integers, which float16 holds exactly, and so do all sums here: results equal the reference's.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import test_transform_pairs as pairs
from test_vmap import SUBSETS, count

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")

RNG = np.random.default_rng(0)


def integers(*shape):
    return RNG.integers(-1, 2, shape).astype("float32")


def signed_sum(values):
    return (values * jnp.where(jnp.arange(values.size) % 3 == 0, -1, 1)).sum()


# Each takes a function of a vector to another.
TRANSFORMATIONS = pairs.TRANSFORMATIONS | {
    "grad": lambda f: jax.grad(lambda v: signed_sum(f(v))),
    "jvp": lambda f: lambda v: jax.jvp(f, (v,), (jnp.roll(v, 1),))[1],
}


def on_cpu(function, vector):
    """The reference's results; a GPU would time convolutions to choose among them."""
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(np.asarray, jax.jit(function)(np.asarray(vector)))


def vectors(name):
    """Ours in float16 products, the reference, and a vector of all operands."""
    ours, reference, shapes = pairs.OPERATIONS[name]
    kwargs = {"compute_dtype": "float16"}
    return (
        lambda switch: pairs.of_vector(ours, shapes, forward_mode=switch, **kwargs),
        pairs.of_vector(reference, shapes),
        jnp.asarray(integers(sum(np.prod(shape) for shape in shapes))),
    )


PAIRS = [pair for pair in itertools.product(TRANSFORMATIONS, repeat=2) if {"grad", "jvp", "vmap"} & {*pair}]


@pytest.mark.parametrize("pair", PAIRS, ids="-of-".join)
@pytest.mark.parametrize("name", pairs.OPERATIONS)
def test_pair(name, pair):
    ours, reference, vector = vectors(name)
    outer, inner = (TRANSFORMATIONS[which] for which in pair)
    want = on_cpu(outer(inner(reference)), vector)
    assert want.any()
    # Forward mode of the operation itself, and not of its gradient, needs the switch.
    switch = pair[1] == "jvp" or (pair[0] == "jvp" and pair[1] != "grad")
    run = jax.jit(outer(inner(ours(switch))))
    assert f"jax_knnconv_{name}_" in run.lower(vector).as_text()
    np.testing.assert_array_equal(run(vector), want)


@pytest.mark.parametrize("name", pairs.OPERATIONS)
def test_hessian_and_third_order(name):
    ours, reference, vector = vectors(name)

    def derivatives(f):
        def half_square(v):
            return (f(v) ** 2).sum() / 2

        def along(v):  # a second derivative, to be differentiated once more
            return signed_sum(jax.jvp(jax.grad(half_square), (v,), (jnp.ones_like(v),))[1])

        return lambda v: (jax.hessian(half_square)(v), jax.grad(along)(v))

    results = jax.jit(derivatives(ours(False)))(vector)
    for got, want in zip(results, on_cpu(derivatives(reference), vector), strict=True):
        assert want.any()
        np.testing.assert_array_equal(got, want)


SIZE, BATCH, N, M, K, V, C_IN, C_OUT = 3, 2, 12, 10, 4, 5, 16, 24
X, W, G = integers(SIZE, BATCH, N, C_IN), integers(SIZE, V, C_IN, C_OUT), integers(M, C_OUT)
INDICES, SLOTS = RNG.integers(-1, N + 1, (SIZE, M, K)), RNG.integers(0, V, (SIZE, M, K))


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_vmap_subsets(axes):
    """Per-example gradients, and their sum where an operand is shared: each pass is one call."""
    which = [slice(None) if axis == 0 else 0 for axis in axes]
    x, w = (jnp.asarray(v[i], jnp.float16) for v, i in ((X, which[0]), (W, which[2])))
    table = jkc.NeighborTable(INDICES[which[1]], SLOTS[which[1]], num_inputs=N, num_slots=V)
    found = []
    for i in range(SIZE):
        xi, indices, slots, wi = (
            v[i if axis == 0 else 0]
            for v, axis in zip((X, INDICES, SLOTS, W), (axes[0], axes[1], axes[1], axes[2]), strict=True)
        )
        g = np.broadcast_to(G, (BATCH, M, C_OUT))
        dw, _ = oracle.knn_dweight(xi, g, indices, slots, num_slots=V)
        dx = oracle.knn_dinput(g, wi, indices, slots, num_inputs=N)
        found.append((oracle.knn_forward(xi, wi, indices, slots), dx, dw))
    y, dx, dw = (np.stack(parts) for parts in zip(*found, strict=True))

    def weighted(x, table, w):
        y = jkc.knn_conv(x, w, table)
        return (y * G.astype("float16")).sum(), y

    def total(x, table, w):
        losses, y = jax.vmap(weighted, axes)(x, table, w)
        return losses.sum(), y

    each = jax.jit(jax.vmap(jax.grad(weighted, (0, 2), has_aux=True), axes)).lower(x, table, w).compile()
    summed = jax.jit(jax.grad(total, (0, 2), has_aux=True)).lower(x, table, w).compile()
    for compiled in (each, summed):
        assert count(compiled) == {"forward": 1, "dinput": 1, "dweight": 1}
    sums = dx if axes[0] == 0 else dx.sum(0), dw if axes[2] == 0 else dw.sum(0)
    for (gradients, got_y), right in ((each(x, table, w), (dx, dw)), (summed(x, table, w), sums)):
        np.testing.assert_array_equal(got_y, y)
        for got, want in zip(gradients, right, strict=True):
            np.testing.assert_array_equal(got, want)
