"""What is seen where compiled targets cannot run: one warning with the reason, and the result of what runs instead."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np

import jax_knnconv as jkc
from jax_knnconv import _readiness, _smoke

INDICES = np.array([[0, 1], [2, -1], [1, 1]])


def operands(dtype, batch=2, channels=8):
    """(x, w) of a table's convolution, and of a dense one."""
    rng = np.random.default_rng(0)
    square = (channels, channels)
    shapes = ((batch, 3, channels), (2, *square)), ((1, 5, 4, channels), (3, 3, *square))
    return [tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in pair) for pair in shapes]


def results(pairs, **options):
    """Values and both gradients of a table's convolution and of a dense one, each compiled as a whole."""
    table = jkc.NeighborTable(INDICES, num_inputs=3)

    def knn(x, w):
        return (jkc.knn_conv(x, w, table, **options).astype("float32") ** 2).sum()

    def dense(x, w):
        return (jkc.conv2d(x, w, **options).astype("float32") ** 2).sum()

    return [jax.jit(jax.value_and_grad(f, (0, 1)))(*pair) for f, pair in zip((knn, dense), pairs, strict=True)]


def same_bits(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def falls_back(pairs, implementation="xla"):
    """The messages of one run's warnings, after it gave what an implementation gives; a second run warns of nothing."""
    jax.clear_caches()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = results(pairs)
    assert all(warning.category is jkc.FallbackWarning for warning in caught), [str(w.message) for w in caught]
    same_bits(found, results(pairs, implementation=implementation))
    jax.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_bits(results(pairs), found)
    return [str(warning.message) for warning in caught]


def backward_without_the_cast(monkeypatch, platform):
    """A backward pass that has every target but the cast warns once of it, and has the bits of one with it."""
    x, w = (jnp.asarray(value, "float32") for value in operands("float32")[1])
    # Beyond the range of float16, not a number, and what rounds to the largest or to zero.
    special = jnp.array([np.inf, -np.inf, 7e4, -7e4, np.nan, 65519.9, 1e-9, 0.1])
    g = jnp.ones((1, 5, 4, 8)).at[0, 1, 2].set(special)

    def backward(x, w, g):
        return jax.vjp(lambda x, w: jkc.conv2d(x, w, compute_dtype="float16"), x, w)[1](g)

    def compiled():
        jax.clear_caches()
        return jax.jit(backward).lower(x, w, g).compile()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = compiled()
        assert "jax_knnconv_cast_operands_v1" in whole.as_text()
        expected = whole(x, w, g)
    error = _smoke.error

    def without(operation, device, family=None):
        if operation == "cast_operands":
            raise RuntimeError("no kernel image is available for execution on the device")
        return error(operation, device, family)

    monkeypatch.setattr(_smoke, "error", without)
    monkeypatch.setattr(_readiness, "_proven", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rest = compiled()
    (told,) = [str(warning.message) for warning in caught]
    assert f"the compiled cast_operands cannot run on {platform}" in told
    assert "jax_knnconv_cast_operands_v1" not in rest.as_text()
    for operation in ("dense_dinput", "dense_dweight"):
        assert f"jax_knnconv_{operation}_v1" in rest.as_text()
    same_bits(rest(x, w, g), expected)
