"""Weight gradients with the room for partial sums that a GPU needs: the same bits as with all room, and right ones."""

import functools

import gpu_problems as problems
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F32

import jax_knnconv as jkc
from jax_knnconv import _rules

pytestmark = pytest.mark.usefixtures("on_gpu")

# B, H, W, C, O of a 3x3 convolution: each family of kernels, and some that cut their depth.
IMAGES = [(16, 32, 32, 3, 32), (16, 32, 32, 32, 32), (64, 16, 16, 64, 64), (8, 16, 16, 256, 128), (3, 9, 13, 24, 72)]
TABLES = [(128, 64, 64, 230, 230, 9, None), (40, 16, 24, 60, 400, 9, 5), (96, 3, 96, 300, 200, 9, None)]


def _both(monkeypatch, call, *operands):
    """What a call gives with the room that it needs, and with all, and the bytes of memory that each takes."""
    found = []
    for _ in range(2):
        jax.clear_caches()
        compiled = jax.jit(lambda *operands: call(*operands)).lower(*operands).compile()
        found.append((compiled(*operands), compiled.memory_analysis().temp_size_in_bytes))
        monkeypatch.setattr(_rules, "partial_slices", lambda *_: None)
    (needed, less), (all_, more) = found
    for one, other in zip(jax.tree.leaves(needed), jax.tree.leaves(all_), strict=True):
        np.testing.assert_array_equal(one, other)
    assert less < more
    return needed


@pytest.mark.parametrize("shape", IMAGES)
def test_images(shape, monkeypatch):
    batch, height, width, channels, outputs = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, height, width, channels), np.float32).astype(BF16)
    g = rng.standard_normal((batch, height, width, outputs), np.float32).astype(BF16)

    def call(x, g):
        return jkc.conv2d_dweight(x, g, (3, 3), preferred_element_type=F32)

    dw, db = _both(monkeypatch, call, jnp.asarray(x), jnp.asarray(g))
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    exact, exact_db = oracle.dense_dweight(x, g, kernel_size=(3, 3), **window)
    bound, bound_db = oracle.dense_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), kernel_size=(3, 3), **window)
    oracle.assert_within_ulp(dw, exact, 8 * bound, F32)
    oracle.assert_within_ulp(db, exact_db, 8 * bound_db, F32)


@pytest.mark.parametrize("shape", TABLES)
def test_tables(shape, monkeypatch):
    problem = problems.knn(shape, BF16)
    table = jkc.NeighborTable(
        problem.indices, problem.slots, num_inputs=problem.x.shape[-2], num_slots=problem.num_slots
    )

    def call(x, g):
        return jkc.knn_dweight(x, g, table, preferred_element_type=F32)

    dw, _ = _both(monkeypatch, call, jnp.asarray(problem.x), jnp.asarray(problem.g))
    given = {"num_slots": problem.num_slots}
    exact, _ = oracle.knn_dweight(problem.x, problem.g, problem.indices, problem.slots, **given)
    magnitudes = abs(oracle.f64(problem.x)), abs(oracle.f64(problem.g))
    bound, _ = oracle.knn_dweight(*magnitudes, problem.indices, problem.slots, **given)
    oracle.assert_within_ulp(dw, exact, 8 * bound, F32)


@pytest.mark.parametrize("summed", [True, False], ids=["sum", "each"])
def test_tables_of_their_own(summed, monkeypatch):
    """Integers, of which all sums are exact: one gradient of all samples, or one of each."""
    groups, n, m, k, channels = 5, 90, 300, 9, 64
    rng = np.random.default_rng(0)
    x, g = (rng.integers(-2, 3, (groups, rows, channels)).astype(BF16) for rows in (n, m))
    table = jkc.NeighborTable(rng.integers(-1, n, (groups, m, k)), num_inputs=n)

    def call(x, g):
        dweight = functools.partial(jkc.knn_dweight, preferred_element_type=F32)
        return dweight(x, g, table) if summed else jax.vmap(dweight)(x, g, table)

    found = _both(monkeypatch, call, jnp.asarray(x), jnp.asarray(g))
    exact = [
        oracle.knn_dweight(x[i : i + 1], g[i : i + 1], indices, num_slots=k)
        for i, indices in enumerate(np.asarray(table.indices))
    ]
    for got, parts in zip(found, zip(*exact, strict=True), strict=True):
        np.testing.assert_array_equal(got, sum(parts) if summed else np.stack(parts))
