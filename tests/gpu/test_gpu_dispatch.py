"""The public operations on a GPU: compiled where they can be, pure JAX where no kernel takes the dtypes."""

import warnings

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")


def test_calls_are_compiled_and_right():
    rng = np.random.default_rng(0)
    indices, slots = calls.random_table(rng, 20, 5, 30, 7)
    table = jkc.NeighborTable(indices, slots, num_inputs=30, num_slots=7)
    x, weight = calls.normal(rng, (4, 30, 16), BF16), calls.normal(rng, (7, 16, 24), BF16, 0.1)
    image, kernel = calls.normal(rng, (2, 9, 9, 16), F16), calls.normal(rng, (3, 3, 16, 8), F16, 0.1)
    g, dense_g = calls.normal(rng, (4, 20, 24), BF16), calls.normal(rng, (2, 5, 5, 8), F16)
    window = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    cases = {
        "knn_forward": (
            lambda x, w: jkc.knn_conv(x, w, table, preferred_element_type=F32),
            (x, weight),
            oracle.knn_forward(x, weight, indices, slots),
        ),
        "knn_dinput": (
            lambda g, w: jkc.knn_dinput(g, w, table, preferred_element_type=F32),
            (g, weight),
            oracle.knn_dinput(g, weight, indices, slots, num_inputs=30),
        ),
        "dense_forward": (
            lambda x, w: jkc.conv2d(x, w, stride=2, padding=1, preferred_element_type=F32),
            (image, kernel),
            oracle.dense_forward(image, kernel, output_size=(5, 5), **window),
        ),
        "dense_dinput": (
            lambda g, w: jkc.conv2d_dinput(g, w, image.shape, stride=2, padding=1, preferred_element_type=F32),
            (dense_g, kernel),
            oracle.dense_dinput(dense_g, kernel, input_size=(9, 9), **window),
        ),
    }
    for operation, (function, operands, exact) in cases.items():
        operands = [jnp.asarray(operand) for operand in operands]
        assert f"jax_knnconv_{operation}_v1" in calls.compiled_text(function, *operands)
        np.testing.assert_allclose(jax.jit(function)(*operands), exact, rtol=0, atol=1e-4, err_msg=operation)


def test_float32_runs_in_pure_jax():
    image, kernel = jnp.ones((1, 6, 6, 4)), jnp.ones((3, 3, 4, 4))
    assert "jax_knnconv_dense" not in calls.compiled_text(jkc.conv2d, image, kernel)  # "auto": nothing to warn of
    with pytest.warns(jkc.FallbackWarning, match="float16 or bfloat16 operands, got float32"):
        jax.jit(lambda x, w: jkc.conv2d(x, w, implementation="wmma")).lower(image, kernel).compile()


def test_loops_and_graphs_give_the_same_bits():  # case 16
    rng = np.random.default_rng(1)
    table = jkc.NeighborTable(calls.random_table(rng, 64, 9, 64)[0], num_inputs=64)
    weight = jnp.asarray(calls.normal(rng, (9, 64, 64), BF16, 0.05))
    x = jnp.asarray(calls.normal(rng, (2, 64, 64), BF16))

    def step(x, _):
        return jkc.knn_dinput(jkc.knn_conv(x, weight, table), weight, table), None

    scanned, _ = jax.jit(lambda x: jax.lax.scan(step, x, None, length=50))(x)
    once = jax.jit(lambda x: step(x, None)[0])
    for _ in range(50):
        x = once(x)
    assert np.asarray(scanned).tobytes() == np.asarray(x).tobytes()


def test_no_warning_is_given_when_kernels_run():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, weight = jnp.ones((2, 8, 8, 8), jnp.float16), jnp.ones((3, 3, 8, 8), jnp.float16)
        assert jkc.conv2d(x, weight)[0, 4, 4, 0] == 72
