"""Channels that are rounded up on the way to a GPU's kernels: the values of those that there are, and no others.

Integers, of which all sums are exact.
"""

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")

PAIRS = [(63, 64), (64, 65), (65, 33), (50, 70)]
WINDOW = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}


def _draw(rng, *shape):
    return rng.integers(-2, 3, shape).astype(np.float32)


def _run(function, *operands, channels):
    """A call's results; its compiled text has operands of whole lines."""
    compiled = jax.jit(function).lower(*operands).compile()
    (line,) = [line for line in compiled.as_text().splitlines() if "custom-call" in line and "jax_knnconv_" in line]
    for size in channels:
        assert f",{-(-size // 8) * 8}]" in line
    return compiled(*operands)


def _check(found, *exact):
    for value, answer in zip(jax.tree.leaves(found), exact, strict=True):
        np.testing.assert_array_equal(np.asarray(value, np.float64), answer)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_dense(pair, dtype):
    c, o = pair
    rng = np.random.default_rng(0)
    x, g, weight = _draw(rng, 20, 16, 15, c), _draw(rng, 20, 16, 15, o), _draw(rng, 3, 3, c, o)
    bias = _draw(rng, o)
    narrow = [value.astype(dtype) for value in (x, g, weight)]
    given = {"preferred_element_type": F32}
    y = _run(lambda x, w, b: jkc.conv2d(x, w, b, **given), narrow[0], narrow[2], bias, channels=pair)
    _check(y, oracle.dense_forward(x, weight, bias, output_size=(16, 15), **WINDOW))
    dx = _run(lambda g, w: jkc.conv2d_dinput(g, w, x.shape, **given), narrow[1], narrow[2], channels=pair)
    _check(dx, oracle.dense_dinput(g, weight, input_size=(16, 15), **WINDOW))
    dweight = _run(lambda x, g: jkc.conv2d_dweight(x, g, (3, 3), **given), *narrow[:2], channels=pair)
    _check(dweight, *oracle.dense_dweight(x, g, kernel_size=(3, 3), **WINDOW))
    wide = _run(lambda x, w: jkc.conv2d(x, w, compute_dtype=dtype), x, narrow[2], channels=pair)
    _check(wide, oracle.dense_forward(x, weight, None, output_size=(16, 15), **WINDOW))


@pytest.mark.parametrize("with_slots", [False, True], ids=["columns", "slots"])
@pytest.mark.parametrize(("batch", "nodes"), [(1, 4000), (80, 50)])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_knn(pair, batch, nodes, with_slots):
    c, o = pair
    rng = np.random.default_rng(1)
    indices, slots = calls.random_table(rng, nodes, 9, nodes, 5 if with_slots else None)
    table = jkc.NeighborTable(indices, slots, num_inputs=nodes, num_slots=5 if with_slots else 9)
    x, g, weight = _draw(rng, batch, nodes, c), _draw(rng, batch, nodes, o), _draw(rng, table.num_slots, c, o)
    narrow = [value.astype(BF16) for value in (x, g, weight)]
    given = {"preferred_element_type": F32}
    y = _run(lambda x, w: jkc.knn_conv(x, w, table, **given), narrow[0], narrow[2], channels=pair)
    exact = oracle.knn_forward(x, weight, indices, slots)
    _check(y, exact)
    exact_dx = oracle.knn_dinput(g, weight, indices, slots, num_inputs=nodes)
    exact_dw = oracle.knn_dweight(x, g, indices, slots, num_slots=table.num_slots)
    _check(_run(lambda g, w: jkc.knn_dinput(g, w, table, **given), *narrow[1:], channels=pair), exact_dx)
    _check(_run(lambda x, g: jkc.knn_dweight(x, g, table, **given), *narrow[:2], channels=pair), *exact_dw)
    both = _run(lambda g, x, w: jkc.knn_backward(g, x, w, table, **given), narrow[1], *narrow[::2], channels=pair)
    _check(both, exact_dx, *exact_dw)


def test_zeros_meet_nothing_that_is_not_finite():
    """A NaN or an infinity of one channel reaches what that channel reaches, and the zeros beside it no result."""
    rng = np.random.default_rng(2)
    x, weight = _draw(rng, 20, 16, 16, 63).astype(F16), _draw(rng, 3, 3, 63, 65).astype(F16)
    x[3, 5, 6, 62], x[7, 1, 1, 0] = np.nan, np.inf
    y = np.asarray(_run(lambda x, w: jkc.conv2d(x, w, preferred_element_type=F32), x, weight, channels=(63, 65)))
    touched = np.zeros(y.shape[:3], bool)
    touched[3, 4:7, 5:8] = touched[7, 0:3, 0:3] = True
    assert np.isfinite(y[~touched]).all()
    assert np.isnan(y[3, 4:7, 5:8]).all()


def test_groups():
    """Weights of their own, by vmap."""
    rng = np.random.default_rng(3)
    x, weight = _draw(rng, 3, 10, 16, 16, 63), _draw(rng, 3, 3, 3, 63, 40)
    y = _run(jax.vmap(lambda x, w: jkc.conv2d(x, w, preferred_element_type=F32)), x.astype(F16), weight.astype(F16),
             channels=(63,))  # fmt: skip
    exact = [oracle.dense_forward(x[i], weight[i], None, output_size=(16, 16), **WINDOW) for i in range(3)]
    _check(y, np.stack(exact))


def test_a_training_step_of_odd_channels():
    rng = np.random.default_rng(4)
    x, weight = _draw(rng, 20, 16, 16, 63), _draw(rng, 3, 3, 63, 64)
    loss = lambda x, w: jnp.sum(jkc.conv2d(x, w, compute_dtype="bfloat16"))  # noqa: E731
    dx, dw = jax.jit(jax.grad(loss, (0, 1)))(x, weight)
    ones = np.ones((20, 16, 16, 64))
    _check(dx, oracle.dense_dinput(ones, weight, input_size=(16, 16), **WINDOW))
    _check(dw, oracle.dense_dweight(x, ones, kernel_size=(3, 3), **WINDOW)[0])
