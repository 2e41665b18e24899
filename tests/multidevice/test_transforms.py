"""Transformations of transformations of a sharded call: values of a one-hot matrix on one device, nothing gathered."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from mesh_cases import (
    BATCH,
    C_IN,
    C_OUT,
    KINDS,
    SHARDINGS,
    SLOTS,
    M,
    N,
    close,
    collectives,
    mesh_for,
    mesh_of,
    normal,
    place,
)

import jax_knnconv as jkc

X, W, BIAS = normal((BATCH, N, C_IN), (5, C_IN, C_OUT), (C_OUT,))
TAPS = np.zeros((M, 5, N), np.float32)
for row, (sources, slots) in enumerate(zip(np.asarray(SLOTS.indices), np.asarray(SLOTS.slots), strict=True)):
    for source, slot in zip(sources, slots, strict=True):
        if 0 <= source < N:
            TAPS[row, slot, source] += 1


def ours(x, w, bias, table, **options):
    return jkc.knn_conv(x, w, table, bias, empty_rows="zero", **options)


def reference(x, w, bias, table, **options):
    live = TAPS.any((1, 2))[:, None]
    return jnp.einsum("mvn,bnc,vco->bmo", TAPS, x, w, precision="highest") + bias * live


def every_transformation(conv):
    """A function that applies them all."""

    def run(x, w, bias, table):
        args = x, w, bias

        def loss(*args, **options):
            return (jnp.sin(conv(*args, table, **options)) ** 2).sum()

        def squares(values):
            return sum((v**2).sum() for v in jax.tree.leaves(values)) * 1e-3

        def looped(*args):
            step = jax.checkpoint(lambda carry, _: (carry + 1e-3 * loss(*args) * jnp.cos(carry), None))
            return jax.lax.scan(step, 0.5, None, length=3)[0]

        grad = jax.grad(loss, (0, 1, 2))
        second = jax.grad(lambda *args: squares(grad(*args)), (0, 1, 2))
        per_example = jax.vmap(jax.grad(lambda w, x: loss(x[None], w, bias)), (None, 0))
        return {
            "jvp of grad": jax.jvp(grad, args, args)[1],
            "grad of grad": second(*args),
            "third order": jax.grad(lambda *args: squares(second(*args)), (0, 1, 2))(*args),
            "forward mode": jax.jvp(lambda *args: conv(*args, table, forward_mode=True), args, args)[1],
            "reverse of forward mode": jax.grad(lambda *args: loss(*args, forward_mode=True), (0, 1, 2))(*args),
            "bias alone": jax.grad(lambda bias: loss(x, w, bias, forward_mode=True))(bias),
            "grad of scan of checkpoint": jax.grad(looped, (0, 1, 2))(*args),
            "vmap of grad": per_example(w, x),
            "jvp of vmap of grad": jax.jvp(lambda w: per_example(w, x), (w,), (w,))[1],
            "vmap over weights": jax.vmap(lambda s: conv(x, w * s, bias, table))(jnp.arange(3.0)),
            "grad of vmap": jax.grad(lambda w: jax.vmap(lambda s: loss(x, w * s, bias))(jnp.arange(3.0)).sum())(w),
        }

    return run


WANT = None


def want():
    global WANT
    if WANT is None:
        WANT = jax.jit(every_transformation(reference))(X, W, BIAS, None)
    return WANT


@pytest.mark.parametrize("name", ["batch", "C_in", "C_out", "batch, rows"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_transformation(kind, name):
    mesh = mesh_for(kind, name)
    *specs, rows = SHARDINGS[name]
    right = want()
    with jax.set_mesh(mesh):
        args = place(mesh, *zip((X, W, BIAS), specs, strict=True))
        args.append(jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh, rows=rows)))
        compiled = jax.jit(every_transformation(ours)).lower(*args).compile()
        assert set(collectives(compiled.as_text())) <= {"all-reduce"}
        got = compiled(*args)
    for what, value in got.items():
        try:
            close(value, right[what], 2e-4)
        except AssertionError as error:
            raise AssertionError(what) from error


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_vmapped_axis_sharded_beside_another(kind):
    """Weights mapped over one mesh axis, their output channels (or the rows) sharded over the other."""
    mesh = mesh_of(kind, (4, 2), ("d", "e"))
    weights = jnp.stack([W * i for i in range(4)])
    right = jnp.stack([reference(X, w, BIAS, None) for w in weights])
    gradients = jnp.stack([jax.grad(lambda w: (reference(X, w, BIAS, None) ** 2).sum())(w) for w in weights])

    def run(x, w, bias, table):
        y = jax.vmap(lambda w: ours(x, w, bias, table))(w)
        return y, jax.vmap(jax.grad(lambda w: (ours(x, w, bias, table) ** 2).sum()))(w)

    for of_weight, rows in ((P("d", None, None, "e"), None), (P("d"), "e"), (P("d"), None)):
        with jax.set_mesh(mesh):
            x, w, bias = place(mesh, (X, P()), (weights, of_weight), (BIAS, P()))
            table = jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh, rows=rows))
            compiled = jax.jit(run).lower(x, w, bias, table).compile()
            text = compiled.as_text()
            assert set(collectives(text)) <= {"all-reduce"}
            assert text.count('custom_call_target="jax_knnconv_knn_dweight_v1"') == 1
            close(compiled(x, w, bias, table), (right, gradients), 1e-4)


def test_inside_shard_map():
    """Replication checks on: batch over one axis, input channels added by hand over the other."""
    mesh = mesh_of(AxisType.Auto, (4, 2), ("d", "e"))
    right = jax.value_and_grad(lambda w: (reference(X, w, 0.0, None) ** 2).sum())(W)
    tangents = jax.jvp(jax.grad(lambda w: (reference(X, w, 0.0, None) ** 2).sum()), (W,), (W,))[1]

    def loss(x, w):
        y = jax.lax.psum(jkc.knn_conv(x, w, SLOTS), "e")
        return jax.lax.psum((y**2).sum(), "d")

    specs = (P("d", None, "e"), P(None, "e"))
    step = jax.shard_map(jax.value_and_grad(loss, 1), mesh=mesh, in_specs=specs, out_specs=(P(), P(None, "e")))
    close(jax.jit(step)(X, W), right, 1e-4)
    pushed = jax.shard_map(
        lambda x, w: jax.jvp(lambda w: jax.grad(loss, 1)(x, w), (w,), (w,))[1],
        mesh=mesh,
        in_specs=specs,
        out_specs=P(None, "e"),
    )
    close(jax.jit(pushed)(X, W), tangents, 1e-4)


def test_per_example_gradients_inside_shard_map():
    """vmap of grad inside, and the bias gradient alone, which no dweight gives along."""
    mesh = mesh_of(AxisType.Auto)

    def each(conv):
        return lambda w, x, b: jax.vmap(
            jax.grad(lambda w, x, b: (conv(x[None], w, b, SLOTS) ** 2).sum(), (0, 2)), (None, 0, None)
        )(w, x, b)

    def own(w, x, b):  # not the sum over devices, which the gradient of a replicated value is
        w, b = (jax.lax.pcast(v, "data", to="varying") for v in (w, b))
        return each(ours)(w, x, b)

    inside = jax.shard_map(own, mesh=mesh, in_specs=(P(), P("data"), P()), out_specs=P("data"))
    close(jax.jit(inside)(W, X, BIAS), each(reference)(W, X, BIAS), 1e-4)

    def alone(w, x, b):
        return jax.grad(lambda b: jax.lax.psum((ours(x, w, b, SLOTS, forward_mode=True) ** 2).sum(), "data"))(b)

    inside = jax.shard_map(alone, mesh=mesh, in_specs=(P(), P("data"), P()), out_specs=P())
    close(jax.jit(inside)(W, X, BIAS), jax.grad(lambda b: (reference(X, W, b, None) ** 2).sum())(BIAS), 1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_pure_jax_under_a_mesh(kind):
    """The fallback, on arrays of one device and on sharded ones: the mesh around is no concern of it."""
    mesh = mesh_of(kind)

    def loss(x, w):
        return (jkc.knn_conv(x, w, SLOTS, implementation="xla") ** 2).sum()

    right = jax.value_and_grad(lambda x, w: (reference(x, w, 0.0, None) ** 2).sum(), (0, 1))(X, W)
    with jax.set_mesh(mesh):
        close(jax.value_and_grad(loss, (0, 1))(X, W), right, 1e-4)
        close(jax.jit(jax.value_and_grad(loss, (0, 1)))(*place(mesh, (X, P("data")), (W, P()))), right, 1e-4)


def test_explicit_beside_auto_axes():
    mesh = jax.make_mesh((4, 2), ("d", "e"), axis_types=(AxisType.Explicit, AxisType.Auto))
    right = jax.value_and_grad(lambda w: (reference(X, w, 0.0, None) ** 2).sum())(W)
    with jax.set_mesh(mesh):
        x, w = place(mesh, (X, P("d")), (W, P(None, None, "e")))
        close(jax.jit(jax.value_and_grad(lambda w, x: (jkc.knn_conv(x, w, SLOTS) ** 2).sum()))(w, x), right, 1e-4)
