"""Derivatives of any order, forward and reverse, of every operand; only what is used runs; loops and checkpoints."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_knnconv as jkc

RNG = np.random.default_rng(0)
TABLE = jkc.NeighborTable([[0, 2], [1, 3], [-1, 0]], [[0, 1], [2, 0], [1, 1]], num_inputs=4, num_slots=3)


def arrays(*shapes, dtype="float32"):
    return [jnp.asarray(RNG.standard_normal(shape), dtype) for shape in shapes]


def dense(x, w, b, forward_mode=False):
    return jkc.conv2d(x, w, b, stride=(2, 1), forward_mode=forward_mode)


def knn(x, w, b, forward_mode=False):
    return jkc.knn_conv(x, w, TABLE, b, empty_rows="zero", forward_mode=forward_mode)


def dense_reference(x, w, b):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=dims, precision="highest") + b


def knn_reference(x, w, b):
    """The same taps by a one-hot matrix of [M, V, N]."""
    taps = np.zeros((3, 3, 4))
    for m, (row, slots) in enumerate(zip([[0, 2], [1, 3], [-1, 0]], [[0, 1], [2, 0], [1, 1]], strict=True)):
        for n, v in zip(row, slots, strict=True):
            if n >= 0:
                taps[m, v, n] += 1
    live = taps.any((1, 2))[:, None]
    return jnp.einsum("mvn,bnc,vco->bmo", taps, x, w, precision="highest") + b * live


OPERATIONS = {
    "conv2d": (dense, dense_reference, arrays((1, 3, 4, 2), (2, 3, 2, 3), (3,))),
    "knn_conv": (knn, knn_reference, arrays((2, 4, 2), (3, 2, 3), (3,))),
}


def close(got, want, tolerance=2e-4):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def scalar(function, **options):
    return lambda *args: (jnp.sin(function(*args, **options)) ** 2).sum()


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_and_hessian(name):
    ours, reference, args = OPERATIONS[name]
    close(jax.grad(scalar(ours), (0, 1, 2))(*args), jax.grad(scalar(reference), (0, 1, 2))(*args))
    want = jax.hessian(scalar(reference), (0, 1, 2))(*args)
    close(jax.jit(jax.hessian(scalar(ours), (0, 1, 2)))(*args), want)
    close(jax.jit(jax.jacrev(jax.jacrev(scalar(ours), (0, 1, 2)), (0, 1, 2)))(*args), want)


@pytest.mark.parametrize("name", OPERATIONS)
def test_forward_mode(name):
    ours, reference, args = OPERATIONS[name]
    switched = lambda *a: ours(*a, forward_mode=True)  # noqa: E731
    close(jax.jacfwd(switched, (0, 1, 2))(*args), jax.jacfwd(reference, (0, 1, 2))(*args))
    x, w, b = args
    g = arrays(ours(x, w, b).shape)[0]
    back = jax.linear_transpose(lambda x: switched(x, w, jnp.zeros_like(b)), x)
    close(back(g), jax.vjp(lambda x: reference(x, w, b), x)[1](g))
    tangents = tuple(arrays(*[a.shape for a in args]))
    close(jax.jvp(switched, tuple(args), tangents), jax.jvp(reference, tuple(args), tangents))
    _, linear = jax.linearize(switched, *args)
    close(linear(*tangents), jax.jvp(reference, tuple(args), tangents)[1])
    check_grads(switched, tuple(args), order=2, modes=["fwd", "rev"], atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("name", OPERATIONS)
def test_third_order_and_jvp_of_grad(name):
    ours, reference, (x, w, b) = OPERATIONS[name]

    def third(function):
        inner = jax.grad(lambda w: scalar(function)(x, w, b))
        second = jax.grad(lambda w: (inner(w) ** 2).sum())
        return jax.grad(lambda w: (second(w) ** 2).sum())(w)

    close(third(ours), third(reference), 2e-2)
    tangent = jnp.ones_like(w)
    close(
        jax.jvp(jax.grad(lambda w: scalar(ours)(x, w, b)), (w,), (tangent,)),
        jax.jvp(jax.grad(lambda w: scalar(reference)(x, w, b)), (w,), (tangent,)),
    )


def test_hessian_by_every_combination():
    """Case 29."""
    table = jkc.NeighborTable([[0, 1], [1, 2]], num_inputs=3)
    x = jnp.array([[1.0], [2.0], [3.0]])

    def f(w, forward_mode=False):
        return (jkc.knn_conv(x, w.reshape(2, 1, 1), table, forward_mode=forward_mode) ** 2).sum() / 2

    def forward(w):
        return f(w, True)

    w, want = jnp.ones(2), [[5, 8], [8, 13]]
    for hessian in (
        jax.hessian(f),
        jax.jacrev(jax.jacrev(f)),
        jax.jacfwd(jax.jacrev(f)),
        jax.jacfwd(jax.jacfwd(forward)),
        jax.jacrev(jax.jacfwd(forward)),
    ):
        assert hessian(w).tolist() == want
        assert jax.jit(hessian)(w).tolist() == want


def test_named_passes_are_differentiable():
    x, w, g = arrays((2, 4, 2), (3, 2, 3), (2, 3, 3))
    check_grads(lambda g, w: jkc.knn_dinput(g, w, TABLE), (g, w), order=2, modes=["fwd", "rev"], atol=2e-2, rtol=2e-2)
    check_grads(lambda x, g: jkc.knn_dweight(x, g, TABLE), (x, g), order=2, modes=["fwd", "rev"], atol=2e-2, rtol=2e-2)
    both = lambda g, x, w: jkc.knn_backward(g, x, w, TABLE, empty_rows="zero")  # noqa: E731
    check_grads(both, (g, x, w), order=2, modes=["fwd", "rev"], atol=2e-2, rtol=2e-2)
    image, kernel, g = arrays((1, 4, 3, 2), (3, 3, 2, 2), (1, 4, 3, 2))
    dinput = lambda g, w: jkc.conv2d_dinput(g, w, (4, 3, 2))  # noqa: E731
    check_grads(dinput, (g, kernel), order=2, modes=["fwd", "rev"], atol=2e-2, rtol=2e-2)
    dweight = lambda x, g: jkc.conv2d_dweight(x, g, (3, 3))  # noqa: E731
    check_grads(dweight, (image, g), order=2, modes=["fwd", "rev"], atol=2e-2, rtol=2e-2)


PASSES = ("forward", "dinput", "dweight")


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    ("argnums", "wanted"),
    [(0, {"dinput"}), (1, {"dweight"}), (2, set()), ((0, 1), {"dinput", "dweight"}), ((1, 2), {"dweight"})],
)
def test_only_what_is_used_runs(name, argnums, wanted):
    """Case 39: the unneeded pass's target is not in the compiled text."""
    ours, _, args = OPERATIONS[name]
    compiled = jax.jit(jax.grad(scalar(ours), argnums)).lower(*args).compile().as_text()
    kind = "dense" if name == "conv2d" else "knn"
    present = {p for p in PASSES if f"jax_knnconv_{kind}_{p}_v1" in compiled}
    assert present == {"forward", *wanted}


def test_unused_gradient_of_a_pair_is_dropped():
    ours, _, args = OPERATIONS["knn_conv"]
    for kept, dropped in ((0, "dweight"), (1, "dinput")):
        function = jax.jit(lambda *a, kept=kept: jax.grad(scalar(ours), (0, 1))(*a)[kept])
        assert f"knn_{dropped}" not in function.lower(*args).compile().as_text()


@pytest.mark.parametrize("argnums", [0, 1])
def test_fused_cast_is_one_call(argnums):
    x, w = arrays((1, 4, 4, 8), (3, 3, 8, 8))
    loss = lambda x, w: (jkc.conv2d(x, w, compute_dtype="bfloat16") ** 2).sum()  # noqa: E731
    compiled = jax.jit(jax.grad(loss, argnums)).lower(x, w).compile().as_text()
    assert compiled.count('custom_call_target="jax_knnconv_cast_operands_v1"') == 1


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_float32_cotangent_is_clipped_once(kind):
    """Infinite and huge cotangents of a 16-bit product become the largest finite value; NaN stays."""
    largest = float(jnp.finfo(kind).max)
    table = jkc.NeighborTable(np.arange(5)[:, None], num_inputs=5)
    x = jnp.ones((5, 1))
    _, back = jax.vjp(lambda x: jkc.knn_conv(x, jnp.ones((1, 1, 1)), table, compute_dtype=kind), x)
    (dx,) = back(jnp.array([[np.inf], [-np.inf], [3.4e38], [np.nan], [0.1]]))
    tenth = float(jnp.asarray(0.1, kind))
    np.testing.assert_array_equal(dx.ravel(), np.array([largest, -largest, largest, np.nan, tenth], np.float32))


def loop_step(carry, w):
    return jnp.tanh(
        jkc.knn_conv(carry, w, TABLE_SQUARE) + jkc.conv2d(carry.reshape(1, 4, 4, 3), W_IMAGE).reshape(1, 16, 3)
    )


TABLE_SQUARE = jkc.grid_table((4, 4), (2, 2))
W_IMAGE, W_NODES, X_NODES = arrays((3, 3, 3, 3), (4, 3, 3), (1, 16, 3))


def test_loops_equal_the_eager_loop():
    """Case 16: fori_loop, while_loop, scan, 50 steps, bit for bit; donated x."""
    step = jax.jit(loop_step)
    want = X_NODES
    for _ in range(50):
        want = step(want, W_NODES)
    want = np.asarray(want).tobytes()
    fori = jax.jit(lambda x, w: jax.lax.fori_loop(0, 50, lambda i, c: loop_step(c, w), x))(X_NODES, W_NODES)
    loop = jax.jit(
        lambda x, w: jax.lax.while_loop(lambda s: s[0] < 50, lambda s: (s[0] + 1, loop_step(s[1], w)), (0, x))[1]
    )(X_NODES, W_NODES)
    scan = jax.jit(lambda x, w: jax.lax.scan(lambda c, _: (loop_step(c, w), None), x, None, length=50)[0])(
        X_NODES, W_NODES
    )
    for got in (fori, loop, scan):
        assert np.asarray(got).tobytes() == want
    donated = jax.jit(loop_step, donate_argnums=0)
    x = X_NODES + 0
    for _ in range(50):
        x = donated(x, W_NODES)
    assert np.asarray(x).tobytes() == want


def test_checkpoint_and_scan():
    def total(w, wrap):
        return jax.lax.scan(lambda c, _: (wrap(loop_step)(c, w), None), X_NODES, None, length=5)[0].sum()

    plain = jax.jit(jax.grad(lambda w: total(w, lambda f: f)))(W_NODES)
    rematerialised = jax.jit(jax.grad(lambda w: total(w, jax.checkpoint)))(W_NODES)
    close(rematerialised, plain, 1e-4)  # XLA may fuse tanh differently the second time
    unrolled = X_NODES

    def unroll(w):
        carry = unrolled
        for _ in range(5):
            carry = loop_step(carry, w)
        return carry.sum()

    close(plain, jax.grad(unroll)(W_NODES), 1e-5)


def test_tables_traced_inside_jit():
    indices = np.array([[0, 2], [1, 3], [-1, 0]])

    @jax.jit
    def f(x, w, indices):
        return (jkc.knn_conv(x, w, jkc.NeighborTable(indices, num_inputs=4)) ** 2).sum()

    x, w = arrays((2, 4, 2), (2, 2, 3))
    table = jkc.NeighborTable(indices, num_inputs=4)
    want = jax.grad(lambda x, w: (jkc.knn_conv(x, w, table) ** 2).sum(), (0, 1))(x, w)
    close(jax.grad(f, (0, 1))(x, w, indices), want, 1e-6)
