"""knn_pool on a GPU: the oracle's values, and the same bits every time, hubs included."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_values_and_bits(kind, slots):
    rng = np.random.default_rng(0)
    rows, sources, columns = 3000, 500, 9
    indices = np.where(rng.random((rows, columns)) < 0.2, 0, rng.integers(-1, sources, (rows, columns)))  # 0 is a hub
    given = rng.integers(0, 4, indices.shape) if slots else None
    table = jkc.NeighborTable(indices, given, num_inputs=sources, num_slots=4 if slots else None)
    x, g = rng.standard_normal((2, sources, 5)), rng.standard_normal((2, rows, 5))
    x, g = jnp.asarray(x, jnp.float32), jnp.asarray(g, jnp.float32)

    @jax.jit
    def run(x, g, table):
        y, back = jax.vjp(lambda x: jkc.knn_pool(x, table, kind=kind), x)
        return y, back(g)[0]

    first = run(x, g, table)
    for got, want in zip(first, oracle.knn_pool(x, table.indices, kind, g), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)
    for _ in range(5):
        for again, once in zip(run(x, g, table), first, strict=True):
            np.testing.assert_array_equal(again, once)
