"""vmap over every subset of the operands, nested, with and without grad: the Python loop's result from one call."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv as jkc

SIZE = 3
RNG = np.random.default_rng(0)
X, W = (jnp.asarray(RNG.standard_normal(s), "float32") for s in ((SIZE, 2, 7, 4), (SIZE, 3, 4, 5)))
TABLES = [
    jkc.NeighborTable(RNG.integers(-1, 8, (5, 3)), RNG.integers(0, 3, (5, 3)), num_inputs=7, num_slots=3)
    for _ in range(SIZE)
]
STACKED = jax.tree.map(lambda *leaves: jnp.stack(leaves), *TABLES)
SUBSETS = [axes for axes in itertools.product((0, None), repeat=3) if axes != (None, None, None)]
TARGETS = ("forward", "dinput", "dweight")


def conv(x, table, w):
    return jkc.knn_conv(x, w, table)


def loss(x, table, w):
    return (conv(x, table, w) ** 2).sum()


def operands(axes):
    return [
        v if axis == 0 else jax.tree.map(lambda leaf: leaf[0], v) for v, axis in zip((X, STACKED, W), axes, strict=True)
    ]


def rows(args, axes):
    for i in range(SIZE):
        yield [
            jax.tree.map(lambda leaf, i=i: leaf[i], v) if axis == 0 else v for v, axis in zip(args, axes, strict=True)
        ]


def calls(function, *args):
    """How often each target stands in the compiled text."""
    return count(jax.jit(function).lower(*args).compile())


def count(compiled):
    text = compiled.as_text()
    return {p: text.count(f'custom_call_target="jax_knnconv_knn_{p}_v1"') for p in TARGETS}


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_forward(axes):
    """Case 15."""
    args = operands(axes)
    mapped = jax.vmap(conv, in_axes=axes)
    close(mapped(*args), np.stack([conv(*row) for row in rows(args, axes)]))
    assert calls(mapped, *args)["forward"] == 1


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_vmap_of_grad(axes):
    """Per-example gradients, one launch of each pass."""
    args = operands(axes)
    mapped = jax.vmap(jax.grad(loss, (0, 2)), in_axes=axes)
    want = [jax.grad(loss, (0, 2))(*row) for row in rows(args, axes)]
    for position, got in enumerate(mapped(*args)):
        close(got, np.stack([w[position] for w in want]))
    assert calls(mapped, *args) == {"forward": 1, "dinput": 1, "dweight": 1}


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_grad_of_vmap(axes):
    args = operands(axes)

    def total(x, w):
        return (jax.vmap(conv, in_axes=axes)(x, args[1], w) ** 2).sum()

    want = [jax.grad(loss, (0, 2))(*row) for row in rows(args, axes)]
    compiled = jax.jit(jax.grad(total, (0, 1))).lower(args[0], args[2]).compile()
    assert count(compiled) == {"forward": 1, "dinput": 1, "dweight": 1}
    for position, (axis, got) in enumerate(zip((axes[0], axes[2]), compiled(args[0], args[2]), strict=True)):
        parts = np.stack([w[position] for w in want])
        close(got, parts if axis == 0 else parts.sum(0))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [((0, None, None), (None, None, 0)), ((None, None, 0), (None, 0, None)), ((0, 0, 0), (0, None, 0))],
)
def test_nested(outer, inner):
    def sized(value, count):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)) * 1, value)

    args = [X[0], TABLES[0], W[0]]
    args = [sized(v, 2) if axis == 0 else v for v, axis in zip(args, inner, strict=True)]
    args = [sized(v, 3) if axis == 0 else v for v, axis in zip(args, outer, strict=True)]
    args = [
        v if not isinstance(v, jax.Array) else v + jnp.asarray(RNG.standard_normal(v.shape), "float32") for v in args
    ]
    mapped = jax.vmap(jax.vmap(conv, in_axes=inner), in_axes=outer)
    got = mapped(*args)

    def pick(value, axis, i):
        return jax.tree.map(lambda leaf: leaf[i], value) if axis == 0 else value

    for i, j in itertools.product(range(3), range(2)):
        row = [pick(pick(v, o, i), n, j) for v, o, n in zip(args, outer, inner, strict=True)]
        close(got[i, j], conv(*row))
    assert calls(mapped, *args)["forward"] == 1


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 3)], ids=str)
def test_conv2d(axes):
    x, w = (jnp.asarray(RNG.standard_normal(s), "float32") for s in ((3, 2, 5, 4, 3), (3, 3, 3, 3, 6)))
    x = x if axes[0] is not None else x[0]
    w = w if axes[1] is not None else w[0]
    x, w = (v if axis in (0, None) else jnp.moveaxis(v, 0, axis) for v, axis in zip((x, w), axes, strict=True))

    def f(x, w):
        return (jkc.conv2d(x, w, stride=(1, 2)) ** 2).sum()

    def pick(value, axis, i):
        return value if axis is None else jnp.take(value, i, axis)

    got = jax.vmap(jax.value_and_grad(f, (0, 1)), in_axes=axes)(x, w)
    want = [jax.value_and_grad(f, (0, 1))(pick(x, axes[0], i), pick(w, axes[1], i)) for i in range(3)]
    for leaf, parts in zip(jax.tree.leaves(got), zip(*map(jax.tree.leaves, want), strict=True), strict=True):
        np.testing.assert_allclose(leaf, np.stack(parts), rtol=1e-4, atol=1e-4)


def test_knn_backward_and_bias():
    g = jnp.asarray(RNG.standard_normal((SIZE, 2, 5, 5)), "float32")
    got = jax.vmap(jkc.knn_backward, in_axes=(0, 0, None, 0))(g, X, W[0], STACKED)
    want = [jkc.knn_backward(g[i], X[i], W[0], TABLES[i]) for i in range(SIZE)]
    for leaf, parts in zip(got, zip(*want, strict=True), strict=True):
        close(leaf, np.stack(parts))
    bias = jnp.asarray(RNG.standard_normal((SIZE, 5)), "float32")
    grad = jax.grad(lambda b: (jkc.knn_conv(X[0], W[0], TABLES[0], b) ** 2).sum())
    close(jax.vmap(grad)(bias), np.stack([grad(b) for b in bias]))


def test_bias_gradient_alone():
    """db where only x or the table is mapped: every example gets its own."""
    kernel, bias = jnp.ones((3, 3, 4, 2)), jnp.zeros(2)
    images = jnp.ones((SIZE, 2, 5, 4, 4))
    grad = jax.vmap(lambda x: jax.grad(lambda b: jkc.conv2d(x, kernel, b).sum())(bias))
    assert grad(images).tolist() == jax.jit(grad)(images).tolist() == [[40, 40]] * SIZE

    def of_table(table):
        total = lambda b: jkc.knn_conv(X[0], W[0], table, b, forward_mode=True).sum()  # noqa: E731
        return jax.grad(total)(jnp.zeros(5))

    for run in (jax.vmap(of_table), jax.jit(jax.vmap(of_table))):
        assert run(STACKED).tolist() == [[10] * 5] * SIZE
    only_db = jax.vmap(lambda x: jkc.conv2d_dweight(x, jnp.ones((2, 5, 4, 2)), (3, 3))[1])
    assert jax.jit(only_db)(images).tolist() == [[40, 40]] * SIZE


@pytest.mark.parametrize("shape", [(0, 3), (5, 0)])
def test_table_without_taps(shape):
    table = jkc.NeighborTable(np.zeros(shape, int), num_inputs=7)
    weights = jnp.ones((SIZE, shape[1], 4, 5))
    dw, dx = jax.vmap(jax.grad(lambda w, x: jkc.knn_conv(x, w, table).sum(), (0, 1)), (0, None))(weights, X[0])
    assert dw.shape == weights.shape
    assert dx.shape == (SIZE, *X[0].shape)
    assert not dw.any()
    assert not dx.any()


def test_many_nested_vmaps():
    """Beyond the handlers' group dimensions the pure-JAX implementation takes over, and says so."""
    x, w = jnp.ones((1,) * 9 + (3, 3, 1)), jnp.ones((1,) * 9 + (3, 3, 1, 1))
    mapped = lambda x, w: jkc.conv2d(x, w)  # noqa: E731
    for _ in range(9):
        mapped = jax.vmap(mapped)
    with pytest.warns(jkc.FallbackWarning, match="at most 8 group dimensions"):
        assert mapped(x, w).sum() == 49


def test_hessian_under_vmap():
    f = lambda w, x: loss(x, TABLES[0], w.reshape(3, 4, 5))  # noqa: E731
    got = jax.vmap(jax.hessian(f), in_axes=(None, 0))(W[0].ravel(), X)
    close(got[1] / 100, jax.hessian(f)(W[0].ravel(), X[1]) / 100)
