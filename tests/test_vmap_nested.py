"""vmap of vmap over every pair of subsets of (x, table, weight), with grad inside or outside: one call of each pass."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from test_vmap import SUBSETS, count

import jax_knnconv as jkc

OUTER, INNER, BATCH, N, M, K, V, C_IN, C_OUT = 3, 2, 2, 5, 4, 3, 3, 2, 4
RNG = np.random.default_rng(0)
X, W, G = (RNG.standard_normal(s) for s in ((OUTER, INNER, BATCH, N, C_IN), (OUTER, INNER, V, C_IN, C_OUT), (M, C_OUT)))
TAPS = RNG.integers(-1, N + 1, (OUTER, INNER, M, K)), RNG.integers(0, V, (OUTER, INNER, M, K))
ONCE = {"forward": 1, "dinput": 1, "dweight": 1}


def at(array, outer, inner):
    """The part of an array [OUTER, INNER, ...] that is there where only some of the two are mapped; others' first."""
    return array[(slice(None) if outer == 0 else 0, slice(None) if inner == 0 else 0)]


def operands(outer, inner):
    x, indices, slots, w = (at(a, o, i) for a, o, i in zip((X, *TAPS, W), spread(outer), spread(inner), strict=True))
    table = jkc.NeighborTable(indices, slots, num_inputs=N, num_slots=V)
    return jnp.asarray(x, "float32"), table, jnp.asarray(w, "float32")


def spread(axes):
    """Axes of (x, indices, slots, weight) from those of (x, table, weight)."""
    return axes[0], axes[1], axes[1], axes[2]


def examples(outer, inner):
    """(y, dx, dw) of every example, [OUTER, INNER, ...], in float64."""
    found = []
    for place in itertools.product(range(OUTER), range(INNER)):
        x, indices, slots, w = (
            array[tuple(n if axis == 0 else 0 for n, axis in zip(place, axes, strict=True))]
            for array, axes in zip((X, *TAPS, W), zip(spread(outer), spread(inner), strict=True), strict=True)
        )
        g = np.broadcast_to(G, (BATCH, M, C_OUT))
        found.append(
            (
                oracle.knn_forward(x, w, indices, slots),
                oracle.knn_dinput(g, w, indices, slots, num_inputs=N),
                oracle.knn_dweight(x, g, indices, slots, num_slots=V)[0],
            )
        )
    return [np.reshape(parts, (OUTER, INNER, *parts[0].shape)) for parts in zip(*found, strict=True)]


def nested(function, outer, inner):
    return jax.vmap(jax.vmap(function, in_axes=inner), in_axes=outer)


def weighted(x, table, w):
    y = jkc.knn_conv(x, w, table)
    return (y * G.astype("float32")).sum(), y


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inner", SUBSETS, ids=str)
@pytest.mark.parametrize("outer", SUBSETS, ids=str)
def test_nested(outer, inner):
    args = operands(outer, inner)
    y, dx, dw = examples(outer, inner)

    each = jax.jit(nested(jax.grad(weighted, (0, 2), has_aux=True), outer, inner)).lower(*args).compile()
    (got_dx, got_dw), got_y = each(*args)
    for got, want in ((got_y, y), (got_dx, dx), (got_dw, dw)):
        close(got, want)
    assert count(each) == ONCE

    def total(x, table, w):
        losses, y = nested(weighted, outer, inner)(x, table, w)
        return losses.sum(), y

    summed = jax.jit(jax.grad(total, (0, 2), has_aux=True)).lower(*args).compile()
    (got_dx, got_dw), got_y = summed(*args)
    close(got_y, y)
    for got, want, position in ((got_dx, dx, 0), (got_dw, dw, 2)):
        shared = tuple(i for i, axes in enumerate((outer, inner)) if axes[position] is None)
        close(got, want.sum(shared))
    assert count(summed) == ONCE
