"""shard_map over one mesh axis, another one Explicit inside it: what is sharded over that stays so."""

from __future__ import annotations

import functools

import jax
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from mesh_cases import BATCH, C_IN, C_OUT, SLOTS, M, N, all_reduces, close, collectives, mesh_of, normal, place

import jax_knnconv as jkc

X, W, BIAS, G = normal((BATCH, N, C_IN), (5, C_IN, C_OUT), (C_OUT,), (BATCH, M, C_OUT))
TAPS = {"indices": np.asarray(SLOTS.indices), "slots": np.asarray(SLOTS.slots)}

# How x, weight, bias and g lie, the table's rows, and the all-reduces of y; the batch is sharded over the mapped "d".
OVER_E = {
    "C_in": ((P("d", None, "e"), P(None, "e"), P(), P("d")), None, 1),
    "C_out": ((P("d"), P(None, None, "e"), P("e"), P("d", None, "e")), None, 0),
    "rows": ((P("d"), P(), P(), P("d", "e")), "e", 0),
}


@functools.cache
def jax_gathers_at_the_border() -> bool:
    """Whether shard_map itself gathers what lies over an axis that it does not map, as in jax 0.10.2."""
    mesh = mesh_of(AxisType.Explicit, (4, 2), ("d", "e"))
    with jax.set_mesh(mesh):
        args = place(mesh, (W[0], P(None, "e")), (X, P("d")))
        product = jax.shard_map(
            lambda w, x: x @ w, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"), axis_names={"d"}
        )
        return "all-gather" in collectives(jax.jit(product).lower(*args).compile().as_text())


@pytest.mark.parametrize("name", OVER_E)
@pytest.mark.parametrize("of_d", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_explicit_axes_beside_manual_ones(of_d, name):
    """Where the other axis was Auto before it was mapped, JAX itself may gather at the border of the shard_map."""
    mesh = jax.make_mesh((4, 2), ("d", "e"), axis_types=(of_d, AxisType.Explicit))
    specs, rows, sums = OVER_E[name]

    def forward(x, weight, bias, g, table):
        del g
        return jkc.knn_conv(x, weight, table, bias, empty_rows="zero")

    def gradients(x, weight, bias, g, table):
        return jax.vjp(lambda *args: forward(*args, None, table), x, weight, bias)[1](g)

    def mapped(function, out_specs):
        in_specs = (P("d"), P(), P(), P("d"), P())
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={"d"})

    with jax.set_mesh(mesh):
        args = place(mesh, *zip((X, W, BIAS, G), specs, strict=True))
        args.append(jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh, rows=rows)))
        run = jax.jit(mapped(forward, P("d"))).lower(*args).compile()
        back = jax.jit(mapped(gradients, (P("d"), P(), P()))).lower(*args).compile()
        y, (dx, dw, db) = run(*args), back(*args)
    if of_d == AxisType.Explicit and not jax_gathers_at_the_border():
        assert collectives(run.as_text()) == all_reduces(sums)
        assert set(collectives(back.as_text())) == {"all-reduce"}
        for value, arg in zip((dx, dw, db, y), args, strict=False):
            assert value.sharding.is_equivalent_to(arg.sharding, value.ndim)
    close(y, oracle.knn_forward(X, W, bias=BIAS, zero_empty_rows=True, **TAPS))
    close(dx, oracle.knn_dinput(G, W, num_inputs=N, **TAPS))
    close((dw, db), oracle.knn_dweight(X, np.asarray(G), num_slots=5, zero_empty_rows=True, **TAPS))


def test_dense():
    """Output channels over the Explicit axis, and a second derivative through it."""
    mesh = mesh_of(AxisType.Explicit, (4, 2), ("d", "e"))
    image, kernel = normal((BATCH, 5, 4, C_IN), (3, 3, C_IN, C_OUT))

    def loss(kernel, image):
        return (jkc.conv2d(image, kernel) ** 2).sum()

    def step(kernel, image):
        total = lambda kernel: jax.lax.psum(loss(kernel, image), "d")  # noqa: E731
        return jax.jvp(jax.grad(total), (kernel,), (kernel,))

    with jax.set_mesh(mesh):
        args = place(mesh, (kernel, P(None, None, None, "e")), (image, P("d")))
        run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), axis_names={"d"}))
        compiled = run.lower(*args).compile()
        got = compiled(*args)
    if not jax_gathers_at_the_border():
        assert set(collectives(compiled.as_text())) == {"all-reduce"}
    y = oracle.dense_forward(image, kernel, stride=(1, 1), padding=(1, 1), dilation=(1, 1), output_size=(5, 4))
    dw, _ = oracle.dense_dweight(image, 2 * y, stride=(1, 1), padding=(1, 1), dilation=(1, 1), kernel_size=(3, 3))
    close(got, (dw, dw))  # the gradient is linear in the kernel
