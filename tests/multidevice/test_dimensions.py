"""Every dimension that may be sharded, alone and in pairs: no gather, the needed all-reduces, the oracle's values."""

from __future__ import annotations

import jax
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P
from mesh_cases import (
    BATCH,
    C_IN,
    C_OUT,
    COLUMNS,
    KINDS,
    SHARDINGS,
    SLOTS,
    M,
    N,
    all_reduces,
    close,
    collectives,
    mesh_for,
    mesh_of,
    normal,
    place,
)

import jax_knnconv as jkc

X, G, BIAS = normal((BATCH, N, C_IN), (BATCH, M, C_OUT), (C_OUT,))
# All-reduces of (forward, its gradients from a given cotangent). XLA joins those over the same axes.
NEEDED = {
    "batch": (0, 1),  # dw and db over the batch
    "C_in": (1, 0),  # y over the input channels
    "C_out": (0, 1),  # dx over the output channels
    "rows": (0, 1),  # dx, dw and db over the rows
    "rows over two axes": (0, 1),
    "batch, rows": (0, 2),  # dx over the rows; dw and db over both
    "C_in, rows": (1, 1),
    "batch, C_out": (0, 2),
    "C_in, C_out": (1, 1),
}


def forward(x, weight, bias, table):
    return jkc.knn_conv(x, weight, table, bias, empty_rows="zero")


def gradients(x, weight, bias, table, g):
    return jax.vjp(lambda *args: forward(*args, table), x, weight, bias)[1](g)


def backward(x, weight, bias, table, g):
    del bias
    return jkc.knn_backward(g, x, weight, table, empty_rows="zero")


@pytest.mark.parametrize("table", [COLUMNS, SLOTS], ids=["columns", "slots"])
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_knn(kind, name, table):
    mesh = mesh_for(kind, name)
    of_x, of_weight, of_bias, rows = SHARDINGS[name]
    of_g = P(of_x[0] if of_x else None, rows, of_bias[0] if of_bias else None)
    (weight,) = normal((table.num_slots, C_IN, C_OUT))
    options = {"indices": np.asarray(table.indices), "slots": None if table.slots is None else np.asarray(table.slots)}
    y = oracle.knn_forward(X, weight, bias=BIAS, zero_empty_rows=True, **options)
    dx = oracle.knn_dinput(G, weight, num_inputs=N, **options)
    dw, db = oracle.knn_dweight(X, np.asarray(G), num_slots=len(weight), zero_empty_rows=True, **options)
    forward_sums, gradient_sums = NEEDED[name]
    with jax.set_mesh(mesh):
        args = place(mesh, (X, of_x), (weight, of_weight), (BIAS, of_bias))
        args.append(jax.device_put(table, jkc.table_shardings(table, mesh, rows=rows)))
        (g,) = place(mesh, (G, of_g))
        for function, operands, want, sums in (
            (forward, args, y, forward_sums),
            (gradients, [*args, g], (dx, dw, db), gradient_sums),
            (backward, [*args, g], (dx, dw, db), gradient_sums),
        ):
            compiled = jax.jit(function).lower(*operands).compile()
            assert collectives(compiled.as_text()) == all_reduces(sums), function.__name__
            got = compiled(*operands)
            close(got, want)
            if function is gradients:
                for value, arg in zip(got, args, strict=False):
                    assert value.sharding.is_equivalent_to(arg.sharding, value.ndim)
            elif function is forward:
                assert got.sharding.is_equivalent_to(g.sharding, got.ndim)


@pytest.mark.parametrize("name", ["batch", "C_in", "C_out", "batch, C_out", "C_in, C_out"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_dense(kind, name):
    mesh = mesh_for(kind, name)
    of_x, of_weight, of_bias, _ = SHARDINGS[name]
    of_g = P(of_x[0] if of_x else None, None, None, of_bias[0] if of_bias else None)
    of_x, of_weight = (P(*spec[:1], None, *spec[1:]) if spec else spec for spec in (of_x, of_weight))
    x, weight, g = normal((BATCH, 5, 4, C_IN), (3, 2, C_IN, C_OUT), (BATCH, 3, 4, C_OUT))
    geometry = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 1)}
    y = oracle.dense_forward(x, weight, BIAS, output_size=(3, 4), **geometry)
    dx = oracle.dense_dinput(g, weight, input_size=(5, 4), **geometry)
    dw, db = oracle.dense_dweight(x, g, kernel_size=(3, 2), **geometry)

    def convolve(x, weight, bias):
        return jkc.conv2d(x, weight, bias, stride=(2, 1), padding=((1, 1), (0, 1)))

    def back(x, weight, bias, g):
        return jax.vjp(convolve, x, weight, bias)[1](g)

    with jax.set_mesh(mesh):
        *args, g = place(mesh, (x, of_x), (weight, of_weight), (BIAS, of_bias), (g, of_g))
        for function, operands, want, sums in zip(
            (convolve, back), (args, [*args, g]), (y, (dx, dw, db)), NEEDED[name], strict=True
        ):
            compiled = jax.jit(function).lower(*operands).compile()
            assert collectives(compiled.as_text()) == all_reduces(sums), function.__name__
            close(compiled(*operands), want)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_axis_for_two_dimensions(kind):
    """Input channels and output rows over the same devices: a device may not add what belongs to different rows."""
    mesh = mesh_of(kind)
    (weight,) = normal((5, C_IN, C_OUT))
    y = oracle.knn_forward(X, weight, np.asarray(SLOTS.indices), np.asarray(SLOTS.slots))
    with jax.set_mesh(mesh):
        x, w = place(mesh, (X, P(None, None, "data")), (weight, P(None, "data")))
        table = jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh, rows="data"))
        close(jax.jit(jkc.knn_conv)(x, w, table), y)
        (g,) = place(mesh, (G, P(None, "data")))
        options = {"indices": np.asarray(SLOTS.indices), "slots": np.asarray(SLOTS.slots)}
        dw, db = oracle.knn_dweight(X, np.asarray(G), num_slots=5, **options)
        want = oracle.knn_dinput(G, weight, num_inputs=N, **options), dw, db
        close(jax.jit(jkc.knn_backward)(g, x, w, table), want)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sixteen_bits(kind):
    """Partial sums over devices are float32, rounded once: y and dw within an ulp of the exact sum."""
    mesh = mesh_of(kind)
    x, w, g = (v.astype("bfloat16") for v in normal((BATCH, N, C_IN), (5, C_IN, C_OUT), (BATCH, M, C_OUT)))
    options = {"indices": np.asarray(SLOTS.indices), "slots": np.asarray(SLOTS.slots)}
    with jax.set_mesh(mesh):
        placed = place(mesh, (x, P(None, None, "data")), (w, P(None, "data")))
        table = jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh))
        y = jax.jit(jkc.knn_conv)(*placed, table)
        x_rows, w_rows, g_rows = place(mesh, (x, P()), (w, P()), (g, P(None, "data")))
        table = jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh, rows="data"))
        dw = jax.jit(jax.grad(lambda w, g: (jkc.knn_conv(x_rows, w, table) * g).sum().astype("float32")))(
            w_rows, g_rows
        )
    exact, size = (oracle.knn_forward(f(x), f(w), **options) for f in (np.asarray, lambda v: abs(oracle.f64(v))))
    oracle.assert_within_ulp(y, exact, 2 * size, y.dtype)
    exact, size = (
        oracle.knn_dweight(f(x), f(g), num_slots=5, **options)[0] for f in (oracle.f64, lambda v: abs(oracle.f64(v)))
    )
    oracle.assert_within_ulp(dw, exact, 2 * size, dw.dtype)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "batch"}, "rows: got axis 'batch', expected one of the mesh's"),
        ({"samples": "data"}, "samples: got 'data', expected None"),
    ],
)
def test_shardings_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        jkc.table_shardings(SLOTS, mesh_of(KINDS[0]), **options)
    odd = jkc.NeighborTable(np.zeros((12, 2), int), num_inputs=4)
    with pytest.raises(ValueError, match="rows: got 8 devices for 12 output rows"):
        jkc.table_shardings(odd, mesh_of(KINDS[0]), rows="data")
    with pytest.raises(TypeError, match="table: got list, expected a NeighborTable"):
        jkc.table_shardings([], mesh_of(KINDS[0]))


@pytest.mark.parametrize("table", [COLUMNS, SLOTS], ids=["columns", "slots"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_in_blocks(kind, table):
    """One table a device for its output rows: no device looks at the taps of others' rows."""
    mesh = mesh_of(kind)
    (weight,) = normal((table.num_slots, C_IN, C_OUT))
    options = {"indices": np.asarray(table.indices), "slots": None if table.slots is None else np.asarray(table.slots)}
    y = oracle.knn_forward(X, weight, bias=BIAS, zero_empty_rows=True, **options)
    dx = oracle.knn_dinput(G, weight, num_inputs=N, **options)
    dw, db = oracle.knn_dweight(X, np.asarray(G), num_slots=len(weight), zero_empty_rows=True, **options)
    blocks = table.split_rows(8)

    def run(x, weight, bias, blocks, g):
        def convolve(x, weight, bias):
            each = jax.vmap(lambda block: forward(x, weight, bias, block), out_axes=-3)
            return each(blocks)  # [B, 8, M / 8, C_out]

        y, back = jax.vjp(convolve, x, weight, bias)
        return y, *back(g)

    with jax.set_mesh(mesh):
        g = np.reshape(G, (BATCH, 8, M // 8, C_OUT))
        x, w, b, g = place(mesh, (X, P()), (weight, P()), (BIAS, P()), (g, P(None, "data")))
        placed = jax.device_put(blocks, jkc.table_shardings(blocks, mesh, samples="data"))
        compiled = jax.jit(run).lower(x, w, b, placed, g).compile()
        got = compiled(x, w, b, placed, g)
    text = compiled.as_text()
    assert collectives(text) == all_reduces(1)  # dx, dw and db over the rows
    assert "scatter" not in text  # by which a device picks its rows' taps out of the whole order
    close(got, (np.reshape(y, g.shape), dx, dw, db))
    assert got[0].sharding.is_equivalent_to(g.sharding, 4)
