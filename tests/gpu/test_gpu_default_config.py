"""`default_config` on the GPU that is here: forced, it gives the bits of the call that had no config."""

import functools

import gpu_calls as calls
import jax
import numpy as np
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

# Batch, sources, rows, neighbours, slots (None: the columns), channels, outputs.
TABLES = [
    (128, 400, 300, 9, None, 3, 32),
    (128, 60, 60, 9, None, 64, 64),
    (128, 60, 60, 9, 5, 64, 64),
    (1, 900, 900, 27, None, 64, 64),
    (20, 40, 30, 5, 7, 24, 40),
    (2, 30, 20, 3, None, 5, 7),
]
# Batch, height, width, channels, outputs, kernel, stride.
IMAGES = [
    (16, 32, 32, 3, 32, 3, 1),
    (16, 32, 32, 32, 32, 3, 1),
    (64, 16, 16, 64, 64, 3, 1),
    (16, 28, 28, 64, 96, 3, 2),
    (3, 9, 14, 13, 72, 3, 1),
    (3, 8, 8, 8, 24, 1, 1),
]


@pytest.fixture
def figures(gpu):
    """Of the GPU, as rules look at it."""
    major, minor = (int(number) for number in gpu.compute_capability.split("."))
    with jax.default_device(gpu):
        yield {"multiprocessors": gpu.core_count, "compute_capability": (major, minor)}


def _check(operation, operands, options, figures):
    config = jkc.default_config(operation, *operands, **options, **figures)
    assert config.kernel in ("portable", "halo", "hopper")
    found = [jax.jit(functools.partial(operation, **options, **given))(*operands) for given in ({}, {"config": config})]
    for chosen, forced in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(np.asarray(chosen), np.asarray(forced), err_msg=str(config))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("shape", TABLES, ids=str)
def test_tables(shape, dtype, figures):
    batch, sources, rows, neighbours, slots, channels, outputs = shape
    rng = np.random.default_rng(0)
    indices, given = calls.random_table(rng, rows, neighbours, sources, slots)
    table = jkc.NeighborTable(indices, given, num_inputs=sources, num_slots=slots or neighbours)
    x, g = (calls.normal(rng, size, dtype) for size in ((batch, sources, channels), (batch, rows, outputs)))
    weight = calls.normal(rng, (slots or neighbours, channels, outputs), dtype, 0.1)
    _check(jkc.knn_conv, (x, weight, table), {}, figures)
    _check(jkc.knn_dinput, (g, weight, table), {"preferred_element_type": F32}, figures)
    _check(jkc.knn_dweight, (x, g, table), {"preferred_element_type": F32}, figures)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_images(shape, dtype, figures):
    batch, height, width, channels, outputs, kernel, stride = shape
    rng = np.random.default_rng(0)
    x = calls.normal(rng, (batch, height, width, channels), dtype)
    weight = calls.normal(rng, (kernel, kernel, channels, outputs), dtype, 0.1)
    g = calls.normal(rng, (batch, -(-height // stride), -(-width // stride), outputs), dtype)
    _check(jkc.conv2d, (x, weight), {"stride": stride}, figures)
    _check(jkc.conv2d_dinput, (g, weight), {"input_shape": x.shape, "stride": stride}, figures)
    _check(jkc.conv2d_dweight, (x, g), {"kernel_shape": (kernel, kernel), "stride": stride}, figures)
    wide = x.astype(np.float32)
    _check(jkc.conv2d, (wide, weight), {"stride": stride, "compute_dtype": dtype}, figures)
