"""Every ordered pair of transformations, of both operations, against the same pair of a one-hot matrix or lax."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv as jkc

INDICES, SLOTS = [[0, 2], [1, 3], [-1, 0]], [[0, 1], [2, 0], [1, 1]]
TABLE = jkc.NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=3)
TAPS = np.zeros((3, 3, 4), np.float32)
for row, (sources, slots) in enumerate(zip(INDICES, SLOTS, strict=True)):
    for source, slot in zip(sources, slots, strict=True):
        if source >= 0:
            TAPS[row, slot, source] += 1


def knn(x, w, b, **options):
    return jkc.knn_conv(x, w, TABLE, b, **options)


def knn_reference(x, w, b):
    return jnp.einsum("mvn,bnc,vco->bmo", TAPS, x, w, precision="highest") + b


def dense(x, w, b, **options):
    return jkc.conv2d(x, w, b, stride=(2, 1), **options)


def dense_reference(x, w, b):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=dims, precision="highest") + b


OPERATIONS = {
    "knn": (knn, knn_reference, ((2, 4, 2), (3, 2, 3), (3,))),
    "dense": (dense, dense_reference, ((1, 3, 4, 2), (2, 3, 2, 3), (3,))),
}


def of_vector(function, shapes, **options):
    """The operation as a function of one vector of all operands, so that each is differentiated and mapped."""
    ends = np.cumsum([np.prod(shape) for shape in shapes])

    def run(vector):
        parts = jnp.split(vector, ends[:-1])
        return function(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)), **options).ravel()

    return run


# Each takes a function of a vector to another.
TRANSFORMATIONS = {
    "grad": lambda f: jax.grad(lambda v: jnp.sin(f(v)).sum()),
    "jvp": lambda f: lambda v: jax.jvp(f, (v,), (jnp.cos(v),))[1],
    "vmap": lambda f: lambda v: jax.vmap(f)(jnp.stack([v, 2 * v, -v])).ravel(),
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda v: jax.lax.scan(lambda carry, s: (carry + s, f(s * v)), 0.0, jnp.arange(3.0))[1].ravel(),
    "cond": lambda f: lambda v: jax.lax.cond(v[0] > -100, f, lambda v: f(v) * 0, v),
}


@pytest.mark.parametrize("pair", list(itertools.product(TRANSFORMATIONS, repeat=2)), ids="-of-".join)
@pytest.mark.parametrize("name", OPERATIONS)
def test_pair(name, pair):
    ours, reference, shapes = OPERATIONS[name]
    outer, inner = (TRANSFORMATIONS[which] for which in pair)
    vector = jnp.asarray(np.random.default_rng(0).standard_normal(sum(np.prod(s) for s in shapes)), "float32") * 0.5
    want = jax.jit(outer(inner(of_vector(reference, shapes))))(vector)
    # Forward mode of the operation itself, and not of its gradient, needs the switch.
    switches = (True,) if pair[1] == "jvp" or (pair[0] == "jvp" and pair[1] != "grad") else (False, True)
    for switch in switches:
        transformed = outer(inner(of_vector(ours, shapes, forward_mode=switch)))
        np.testing.assert_allclose(jax.jit(transformed)(vector), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_launch_of_each_pass(name):
    """Per-example gradients inside scan and checkpoint: a loop's body holds each target once."""
    ours, _, shapes = OPERATIONS[name]
    x, w, b = (jnp.ones(shape) for shape in shapes)
    loss = jax.checkpoint(lambda w, x, b: (ours(x[None], w, b) ** 2).sum())

    def gradients(w, x, b):
        each = jax.vmap(jax.grad(loss, (0, 1)), (None, 0, None))
        return jax.lax.scan(lambda carry, s: (carry, each(w * s, x, b)), 0.0, jnp.arange(3.0))[1]

    text = jax.jit(gradients).lower(w, jnp.concatenate([x, x]), b).compile().as_text()
    for target in ("forward", "dinput", "dweight"):
        assert text.count(f'custom_call_target="jax_knnconv_{name}_{target}_v1"') == 1, target
