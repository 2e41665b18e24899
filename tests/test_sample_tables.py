"""One table a sample: the shared weight's gradient is a sum over samples, whose terms are held nowhere."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_knnconv as jkc

GROUPS, BATCH, N, M, K, C_IN, C_OUT = 5, 2, 11, 7, 4, 6, 9


def operands(has_slots, dtype="float32"):
    """(x, weight, bias, g, indices, slots, table, num_slots); row 2 of each table has no tap."""
    rng = np.random.default_rng(0)
    indices = rng.integers(-2, N + 2, (GROUPS, M, K))
    indices[:, 2] = -1
    num_slots = 6 if has_slots else K
    slots = rng.integers(0, num_slots, indices.shape) if has_slots else None
    table = jkc.NeighborTable(indices, slots, num_inputs=N, num_slots=num_slots if has_slots else None)
    shapes = ((GROUPS, BATCH, N, C_IN), (num_slots, C_IN, C_OUT), (C_OUT,), (GROUPS, BATCH, M, C_OUT))
    x, weight, bias, g = (
        jnp.asarray(rng.standard_normal(s), d) for s, d in zip(shapes, (dtype, dtype, "float32", dtype), strict=True)
    )
    return x, weight, bias, g, indices, slots, table, num_slots


def answer(x, g, indices, slots, num_slots, zero):
    """(dw, db, sums of absolute products) in float64."""
    options = {"num_slots": num_slots, "zero_empty_rows": zero}
    pairs = [(x, g), (np.abs(oracle.f64(x)), np.abs(oracle.f64(g)))]
    sums = []
    for a, b in pairs:
        parts = [
            oracle.knn_dweight(a[i], b[i], indices[i], None if slots is None else slots[i], **options)
            for i in range(GROUPS)
        ]
        sums += [sum(part) for part in zip(*parts, strict=True)]
    return sums


@pytest.mark.parametrize(
    ("implementation", "dtype", "has_slots", "zero"),
    [
        *itertools.product(["auto"], ["float32", "bfloat16"], [False, True], [False, True]),
        ("xla", "float32", False, False),
        ("xla", "bfloat16", True, True),
    ],
)
def test_weight_and_bias_gradients(implementation, dtype, has_slots, zero):
    x, weight, bias, g, indices, slots, table, num_slots = operands(has_slots, dtype)
    options = {"empty_rows": "zero" if zero else "bias", "implementation": implementation}
    dw64, db64, dw_sums, db_sums = answer(x, g, indices, slots, num_slots, zero)

    @jax.jit
    def gradients(weight, bias):
        _, back = jax.vjp(lambda w, b: jkc.knn_conv(x, w, table, b, **options), weight, bias)
        return {
            "vjp": back(g),
            "knn_dweight": jkc.knn_dweight(x, g, table, **options),
            "knn_backward": jkc.knn_backward(g, x, weight, table, **options)[1:],
        }

    for name, (dw, db) in gradients(weight, bias).items():
        oracle.assert_within_ulp(dw, dw64, dw_sums, dtype, f"dw of {name}")
        oracle.assert_within_ulp(db, db64, db_sums, db.dtype, f"db of {name}")


@pytest.mark.parametrize("implementation", ["auto", "xla"])
def test_the_sum_is_rounded_once(implementation):
    """512 samples of one tap each: a bfloat16 sum of ones would stop at 256."""
    table = jkc.NeighborTable(np.zeros((512, 1, 1), np.int32), num_inputs=1)
    x = g = jnp.ones((512, 1, 1), "bfloat16")
    dw, db = jkc.knn_dweight(x, g, table, implementation=implementation)
    assert (dw.dtype, dw.item(), db.item()) == (jnp.bfloat16, 512, 512)


@pytest.mark.parametrize(
    ("implementation", "operation", "has_slots"),
    [
        *itertools.product(["auto"], ["knn_dweight", "knn_backward", "vjp"], [False, True]),
        ("xla", "knn_dweight", True),
        ("xla", "knn_backward", False),
    ],
)
def test_temporary_memory(implementation, operation, has_slots):
    """32 samples, 27 x 512 x 512 weights: 28 MB, but 900 MB for all samples' gradients. Compiled, not run."""
    groups, n, k, c = 32, 64, 27, 512
    rows = jax.ShapeDtypeStruct((groups, n, c), jnp.float32)
    weight = jax.ShapeDtypeStruct((k, c, c), jnp.float32)
    indices = jax.ShapeDtypeStruct((groups, n, k), jnp.int32)
    table = jax.eval_shape(
        lambda i, s: jkc.NeighborTable(i, s, num_inputs=n, num_slots=k if has_slots else None),
        indices,
        indices if has_slots else None,
    )
    options = {"implementation": implementation}
    functions = {
        "knn_dweight": lambda x, g, w, t: jkc.knn_dweight(x, g, t, **options),
        "knn_backward": lambda x, g, w, t: jkc.knn_backward(g, x, w, t, **options),
        "vjp": lambda x, g, w, t: jax.vjp(lambda w: jkc.knn_conv(x, w, t, **options), w)[1](g),
    }
    memory = jax.jit(functions[operation]).lower(rows, rows, weight, table).compile().memory_analysis()
    weight_bytes = 4 * k * c * c
    assert memory.temp_size_in_bytes < (4 if implementation == "auto" else 8) * weight_bytes


def test_vmapped_samples_are_one_call():
    """vmap over x and table, with the weight outside: the gradient of the total is summed inside one call."""
    x, weight, _, _, _, _, table, _ = operands(True)

    def total(w):
        return (jax.vmap(lambda x, t: jkc.knn_conv(x, w, t))(x, table) ** 2).sum()

    text = jax.jit(jax.grad(total)).lower(weight).compile().as_text()
    assert text.count('custom_call_target="jax_knnconv_knn_dweight_v1"') == 1
    one = jax.grad(lambda w, i: (jkc.knn_conv(x[i], w, jax.tree.map(lambda leaf: leaf[i], table)) ** 2).sum())
    np.testing.assert_allclose(
        jax.grad(total)(weight), sum(one(weight, i) for i in range(GROUPS)), rtol=1e-5, atol=1e-4
    )
