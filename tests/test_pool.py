"""knn_pool against the oracle: values, gradients of any order, vmap, dtypes, holes and hubs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_knnconv as jkc

KINDS = ("max", "mean", "sum")
RNG = np.random.default_rng(0)
# Repeated neighbours, with equal and with different slots, holes of several values, and a row of holes.
INDICES = np.array([[0, 2, 2, 5], [3, -1, 1, 3], [9, -7, 5, 5], [1, 1, 1, 1], [4, 0, 3, 2]])
SLOTS = np.array([[0, 1, 1, 0], [2, 0, 2, 2], [0, 1, 2, 0], [1, 1, 0, 0], [2, 1, 0, 2]])
TABLES = {
    "columns": jkc.NeighborTable(INDICES, num_inputs=5),
    "slots": jkc.NeighborTable(INDICES, SLOTS, num_inputs=5, num_slots=3),
    "one slot": jkc.NeighborTable(INDICES, np.zeros_like(SLOTS), num_inputs=5, num_slots=1),
}


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def value_and_dx(x, g, table, kind):
    y, back = jax.vjp(lambda x: jkc.knn_pool(x, table, kind=kind), x)
    return y, back(g)[0]


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLES)
def test_values_and_gradients(name, kind):
    table, x, g = TABLES[name], normal(2, 5, 3), normal(2, 5, 3)
    want = oracle.knn_pool(x, table.indices, kind, g)
    close(value_and_dx(x, g, table, kind), want)
    close(jax.jit(value_and_dx, static_argnames="kind")(x, g, table, kind), want)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_random_tables(data):
    num_inputs, rows, columns = (data.draw(st.integers(low, 6)) for low in (1, 0, 0))
    with_slots, kind = data.draw(st.booleans()), data.draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    indices = rng.integers(-1, num_inputs + 1, (rows, columns))
    slots = rng.integers(0, 2, (rows, columns)) if with_slots else None
    table = jkc.NeighborTable(indices, slots, num_inputs=num_inputs, num_slots=2 if with_slots else None)
    # Ties are frequent: the first of the table's own order wins. Sums of small integers are exact.
    x, g = rng.integers(-2, 3, (2, num_inputs, 3)), rng.integers(-4, 5, (2, rows, 3))
    x, g = x.astype(np.float32), g.astype(np.float32)
    close(value_and_dx(x, g, table, kind), oracle.knn_pool(x, table.indices, kind, g))


def test_many_columns():
    """Columns of more than 8 bits, at the edges of what holds them."""
    for columns in (254, 255):
        indices = np.stack([np.arange(columns), np.arange(columns)[::-1]])
        for slots in (None, np.zeros_like(indices)):
            table = jkc.NeighborTable(indices, slots, num_inputs=columns, num_slots=columns if slots is None else 1)
            x, g = normal(1, columns, 2), normal(1, 2, 2)
            close(value_and_dx(x, g, table, "max"), oracle.knn_pool(x, indices, "max", g))


def test_a_hub_and_repeats_across_chunks():
    """One source with all taps; equal taps of a row lie in one chunk or in two."""
    rows, columns = 700, 9
    for slots in (None, np.zeros((rows, columns), np.int32)):
        table = jkc.NeighborTable(
            np.zeros((rows, columns), np.int32), slots, num_inputs=2, num_slots=columns if slots is None else 1
        )
        x, g = np.array([[[1.0], [5.0]]], np.float32), np.ones((1, rows, 1), np.float32)
        y, dx = value_and_dx(x, g, table, "max")
        np.testing.assert_array_equal(y, np.ones((1, rows, 1)))
        np.testing.assert_array_equal(dx, [[[rows], [0]]])
        np.testing.assert_array_equal(value_and_dx(x, g, table, "sum")[1], [[[rows * columns], [0]]])


def test_what_is_not_finite_stays_where_it_is_read():
    table = jkc.NeighborTable([[0, 1], [1, 7], [7, 7]], num_inputs=4)
    x = jnp.array([[-jnp.inf], [2.0], [jnp.nan], [jnp.inf]])
    np.testing.assert_array_equal(jkc.knn_pool(x, table), [[2], [2], [0]])
    np.testing.assert_array_equal(jkc.knn_pool(x, table, kind="sum"), [[-np.inf], [2], [0]])
    # A NaN is the greatest; a cotangent that is not finite reaches the winner alone.
    both = jkc.NeighborTable([[1, 2, 3]], num_inputs=4)
    y, dx = value_and_dx(x, jnp.array([[jnp.inf]]), both, "max")
    assert np.isnan(y).all()
    np.testing.assert_array_equal(dx, [[0], [0], [np.inf], [0]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_16_bits_are_rounded_once(dtype):
    count = 40_000
    table = jkc.NeighborTable(np.zeros((count, 1), np.int32), num_inputs=1)
    y, dx = value_and_dx(jnp.ones((1, 1), dtype), jnp.ones((count, 1), dtype), table, "max")
    assert (y.dtype, dx.dtype) == (dtype, dtype)
    assert dx.item() == jnp.asarray(count, dtype).item()
    row = jkc.NeighborTable(np.arange(3000)[None], num_inputs=3000)
    x = jnp.asarray(normal(3000, 1), dtype)
    mean = oracle.f64(x).sum() / 3000
    assert jkc.knn_pool(x, row, kind="mean").item() == jnp.asarray(np.float32(mean), dtype).item()


@pytest.mark.parametrize("kind", KINDS)
def test_transformations(kind):
    """Forward mode, second order, checkpoint, loops."""
    table, x, t = TABLES["slots"], normal(2, 5, 3), normal(2, 5, 3)

    def pool(x):
        return jkc.knn_pool(x, table, kind=kind)

    def naive(x):
        inside = ((table.indices >= 0) & (table.indices < 5))[..., None]
        values = jnp.take(x, table.indices, axis=1, mode="clip")
        total = jnp.where(inside, values, -jnp.inf).max(2) if kind == "max" else jnp.where(inside, values, 0).sum(2)
        count = inside.sum(1)
        return jnp.where(count > 0, total / jnp.maximum(count, 1) if kind == "mean" else total, 0)

    def energy(f):
        return lambda x: (jnp.sin(f(x)) ** 2).sum()

    # Where neighbours repeat, jax.numpy's max splits the gradient between equal ones, which add up at their source.
    close(jax.jvp(pool, (x,), (t,)), jax.jvp(naive, (x,), (t,)))
    close(jax.hessian(energy(pool))(x), jax.hessian(energy(naive))(x))
    close(jax.grad(jax.checkpoint(energy(pool)))(x), jax.grad(energy(naive))(x))
    carry = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: pool(x), x))(x)
    close(carry, naive(naive(naive(x))))


@pytest.mark.parametrize("kind", KINDS)
def test_vmap(kind):
    """Mapped values, tables, or both; and a table a sample."""
    tables = [jkc.NeighborTable(RNG.integers(-1, 6, (4, 3)), num_inputs=5) for _ in range(3)]
    stacked = jkc.stack_tables(tables)
    x, g = normal(3, 2, 5, 2), normal(3, 2, 4, 2)
    for axes in ((0, 0), (None, 0), (0, None)):
        args = (x if axes[0] == 0 else x[0], stacked if axes[1] == 0 else tables[0])
        run = jax.vmap(lambda x, table, g: value_and_dx(x, g, table, kind), (*axes, 0))
        want = [
            oracle.knn_pool(x[i if axes[0] == 0 else 0], tables[i if axes[1] == 0 else 0].indices, kind, g[i])
            for i in range(3)
        ]
        close(run(*args, g), [np.stack(part) for part in zip(*want, strict=True)])
    want = [oracle.knn_pool(x[i], tables[i].indices, kind, g[i]) for i in range(3)]
    close(value_and_dx(x, g, stacked, kind), [np.stack(part) for part in zip(*want, strict=True)])
    total = jax.grad(lambda x: (jax.vmap(lambda t, g: jkc.knn_pool(x, t, kind=kind) * g)(stacked, g)).sum())(x[0])
    close(total, sum(oracle.knn_pool(x[0], tables[i].indices, kind, g[i])[1] for i in range(3)))


def test_nothing_of_the_size_of_all_neighbours_is_held():
    table = jkc.NeighborTable(RNG.integers(0, 2000, (2000, 64)), num_inputs=2000)
    x = jax.ShapeDtypeStruct((32, 2000, 16), jnp.float32)
    compiled = jax.jit(jax.value_and_grad(lambda x, t: jkc.knn_pool(x, t).sum())).lower(x, table).compile()
    gathered = 32 * 2000 * 64 * 16 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < gathered / 8


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda x, t: jkc.knn_pool(x, t, kind="median"),
            ValueError,
            "kind: got 'median', expected one of 'max', 'mean', 'sum'",
        ),
        (lambda x, t: jkc.knn_pool(x, t.indices), TypeError, "table: got .*expected a NeighborTable"),
        (lambda x, t: jkc.knn_pool(x[:4], t), ValueError, "x's rows .* got 4, expected 5"),
        (lambda x, t: jkc.knn_pool(x[0], t), ValueError, r"x: got shape \(2,\), expected \[\.\.\., N, C\], at least 2"),
        (
            lambda x, t: jkc.knn_pool(x, jkc.stack_tables([t])),
            ValueError,
            "x: .*expected one that begins with the table's dimensions",
        ),
    ],
)
def test_errors(call, kind, message):
    with pytest.raises(kind, match=message):
        call(jnp.ones((5, 2)), TABLES["columns"])
