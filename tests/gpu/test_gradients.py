"""Gradients of the public operations on a GPU: which targets run, and that their values are right."""

import functools

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")


def _separate(x, weight, bias, g, table):
    return jax.vjp(lambda *args: jkc.knn_conv(*args[:2], table, args[2]), x, weight, bias)[1](g)


def _together(x, weight, bias, g, table):
    del bias
    return jkc.knn_backward(g, x, weight, table)


@pytest.mark.parametrize(
    ("gradients", "targets"),
    [(_separate, ("knn_dinput", "knn_dweight")), (_together, ("knn_backward",))],
    ids=["separate", "together"],
)
def test_knn_gradients(gradients, targets):
    rng = np.random.default_rng(0)
    indices, slots = calls.random_table(rng, 40, 5, 30, 7)
    table = jkc.NeighborTable(indices, slots, num_inputs=30, num_slots=7)
    x, weight = calls.normal(rng, (4, 30, 16), BF16), calls.normal(rng, (7, 16, 24), BF16, 0.1)
    bias, g = calls.normal(rng, (24,), F32), calls.normal(rng, (4, 40, 24), BF16)
    operands = [jnp.asarray(operand) for operand in (x, weight, bias, g)]
    compute = functools.partial(gradients, table=table)
    text = calls.compiled_text(compute, *operands)
    for target in targets:
        assert f"jax_knnconv_{target}_v1" in text
    dx, dw, db = jax.jit(compute)(*operands)
    exact_dw, exact_db = oracle.knn_dweight(x, g, indices, slots, num_slots=7)
    bound_dw, bound_db = oracle.knn_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), indices, slots, num_slots=7)
    oracle.assert_within_ulp(dw, exact_dw, 2 * bound_dw, BF16)
    oracle.assert_within_ulp(db, exact_db, 2 * bound_db, np.asarray(db).dtype)
    exact = oracle.knn_dinput(g, weight, indices, slots, num_inputs=30)
    bound = oracle.knn_dinput(abs(oracle.f64(g)), abs(oracle.f64(weight)), indices, slots, num_inputs=30)
    oracle.assert_within_ulp(dx, exact, 2 * bound, BF16)


def test_float32_operands_go_through_the_fused_cast():
    rng = np.random.default_rng(1)
    x, weight = calls.normal(rng, (2, 9, 9, 16), F32), calls.normal(rng, (3, 3, 16, 8), F32, 0.1)
    g = calls.normal(rng, (2, 9, 9, 8), F32, 1e4) * 1e3  # beyond the range of float16

    def gradients(x, weight, g):
        return jax.vjp(lambda x, w: jkc.conv2d(x, w, compute_dtype=F16), x, weight)[1](g)

    operands = [jnp.asarray(operand) for operand in (x, weight, g)]
    text = calls.compiled_text(gradients, *operands)
    for operation in ("cast_operands", "dense_dinput", "dense_dweight"):
        assert f"jax_knnconv_{operation}_v1" in text
    dx, dw = jax.jit(gradients)(*operands)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x, weight, g = x.astype(F16), weight.astype(F16), np.clip(g, -65504, 65504).astype(F16)
    exact, _ = oracle.dense_dweight(x, g, kernel_size=(3, 3), **window)
    bound, _ = oracle.dense_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), kernel_size=(3, 3), **window)
    oracle.assert_within_ulp(dw, exact, 2 * bound, F32)
    exact = oracle.dense_dinput(g, weight, input_size=(9, 9), **window)
    bound = oracle.dense_dinput(abs(oracle.f64(g)), abs(oracle.f64(weight)), input_size=(9, 9), **window)
    oracle.assert_within_ulp(dx, exact, 2 * bound, F32)


@pytest.mark.parametrize("shared", [False, True], ids=["per example", "summed"])
def test_gradients_of_per_sample_tables(shared):
    """A weight of its own for each sample gives per-example gradients; a shared one, their sum."""
    rng = np.random.default_rng(2)
    tables = [calls.random_table(rng, 20, 5, 30)[0] for _ in range(3)]
    table = jkc.NeighborTable(np.stack(tables), num_inputs=30)
    x, g = calls.normal(rng, (3, 30, 16), F16), calls.normal(rng, (3, 20, 8), F16)
    weight = calls.normal(rng, (5, 16, 8), F16, 0.1)

    def loss(weight, x, indices, g):
        y = jkc.knn_conv(x, weight, jkc.NeighborTable(indices, num_inputs=30), preferred_element_type=F32)
        return jnp.sum(y * g)

    if shared:
        dw = jax.grad(lambda w: jnp.sum(jkc.knn_conv(jnp.asarray(x), w, table, preferred_element_type=F32) * g))(weight)
    else:
        dw = jax.vmap(jax.grad(loss), (None, 0, 0, 0))(weight, x, np.stack(tables), g)
    exact = np.stack([oracle.knn_dweight(x[i : i + 1], g[i : i + 1], tables[i], num_slots=5)[0] for i in range(3)])
    bound = [
        oracle.knn_dweight(abs(oracle.f64(x[i : i + 1])), abs(oracle.f64(g[i : i + 1])), tables[i], num_slots=5)[0]
        for i in range(3)
    ]
    exact, bound = (exact.sum(0), sum(bound)) if shared else (exact, np.stack(bound))
    oracle.assert_within_ulp(dw, exact, 2 * bound, F16)
