"""Under jax.numpy's strict modes, which users set to check code of their own, every operation works as without."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_knnconv as jkc

RNG = np.random.default_rng(0)
INDICES, SLOTS = RNG.integers(-1, 7, (5, 3)), np.sort(RNG.integers(0, 3, (5, 3)))


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def whole(*shape):
    return RNG.integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("implementation", ["auto", "xla"])
@pytest.mark.parametrize("slots", [None, SLOTS], ids=["columns", "slots"])
def test_knn(implementation, slots):
    table = jkc.NeighborTable(INDICES, slots, num_inputs=6, num_slots=3)
    x, weight, bias, g = whole(2, 6, 3), whole(3, 3, 4), whole(4), whole(2, 5, 4)
    options = {"empty_rows": "zero", "compute_dtype": "bfloat16", "implementation": implementation}
    y, back = jax.vjp(lambda x, weight, bias: jkc.knn_conv(x, weight, table, bias, **options), x, weight, bias)
    dx, dw, db = back(jnp.asarray(g))
    np.testing.assert_array_equal(
        y, oracle.knn_forward(x, weight, INDICES, slots, bias, zero_empty_rows=True).astype(np.float32)
    )
    np.testing.assert_array_equal(dx, oracle.knn_dinput(g, weight, INDICES, slots, num_inputs=6))
    expected = oracle.knn_dweight(x, g, INDICES, slots, num_slots=3, zero_empty_rows=True)
    np.testing.assert_array_equal(dw, expected[0])
    np.testing.assert_array_equal(db, expected[1])


@pytest.mark.parametrize("implementation", ["auto", "xla"])
def test_dense(implementation):
    x, weight, bias, g = whole(2, 5, 6, 3), whole(3, 2, 3, 4), whole(4), whole(2, 3, 3, 4)
    window = {"stride": 2, "padding": ((1, 1), (0, 0)), "implementation": implementation}
    y, back = jax.vjp(lambda x, weight, bias: jkc.conv2d(x, weight, bias, **window), x, weight, bias)
    dx, dw, db = back(jnp.asarray(g))
    geometry = {"stride": (2, 2), "padding": (1, 0), "dilation": (1, 1)}
    np.testing.assert_array_equal(y, oracle.dense_forward(x, weight, bias, **geometry, output_size=(3, 3)))
    np.testing.assert_array_equal(dx, oracle.dense_dinput(g, weight, **geometry, input_size=(5, 6)))
    expected = oracle.dense_dweight(x, g, **geometry, kernel_size=(3, 2))
    np.testing.assert_array_equal(dw, expected[0])
    np.testing.assert_array_equal(db, expected[1])


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize("slots", [None, SLOTS], ids=["columns", "slots"])
def test_pool(kind, slots):
    table = jkc.NeighborTable(INDICES, slots, num_inputs=6, num_slots=3)
    x, g = whole(2, 6, 3), whole(2, 5, 3)
    y, back = jax.vjp(lambda x: jkc.knn_pool(x, table, kind=kind), x)
    expected = oracle.knn_pool(x, INDICES, kind, g)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(back(jnp.asarray(g))[0], expected[1])


def test_tables_made_under_jit():
    made = jax.jit(lambda i, s: jkc.NeighborTable(i, s, num_inputs=6, num_slots=3))(INDICES, SLOTS)
    known = jkc.NeighborTable(INDICES, SLOTS, num_inputs=6, num_slots=3)
    jax.tree.map(np.testing.assert_array_equal, made, known)
