"""Calls that are lowered for a GPU where there is none, and what their programs force."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np

import jax_knnconv as jkc

TABLE = jkc.NeighborTable(np.array([[0, 1], [2, -1], [1, 1]]), num_inputs=3)
X, W = jnp.ones((3, 8), "bfloat16"), jnp.ones((2, 8, 8), "bfloat16")
IMAGE, KERNEL = jnp.ones((1, 5, 5, 8), "float16"), jnp.ones((3, 3, 8, 8), "float16")
PASSES = {
    "dense_forward": lambda **given: jkc.conv2d(IMAGE, KERNEL, **given),
    "dense_dinput": lambda **given: jkc.conv2d_dinput(IMAGE, KERNEL, IMAGE.shape, **given),
    "dense_dweight": lambda **given: jkc.conv2d_dweight(IMAGE, IMAGE, (3, 3), **given),
    "knn_forward": lambda **given: jkc.knn_conv(X, W, TABLE, **given),
    "knn_dinput": lambda **given: jkc.knn_dinput(X, W, TABLE, **given),
    "knn_dweight": lambda **given: jkc.knn_dweight(X, X, TABLE, **given),
    "knn_backward": lambda **given: jkc.knn_backward(X, X, W, TABLE, **given),
}


def lowered(function, platform="cuda"):
    return jax.jit(function).trace().lower(lowering_platforms=(platform,)).as_text()


def call_line(operation, **given):
    """The one call of an operation, as it stands in its program."""
    lines = [line for line in lowered(lambda: PASSES[operation](**given)).splitlines() if operation in line]
    (line,) = [line for line in lines if "custom_call" in line]
    return line


def choices(operation, **given):
    """The attributes that choose a kernel in the one call of an operation."""
    line = call_line(operation, **given)
    found = {}
    if kernel := re.search(r'kernel = "(\w+)"', line):
        found["kernel"] = kernel[1]
    if tile := re.search(r"tile = dense<\[(.*?)\]> : tensor<3xi64>", line):
        found["tile"] = [int(size) for size in tile[1].split(",")]
    if ksplit := re.search(r"ksplit = (\d+)", line):
        found["ksplit"] = int(ksplit[1])
    return found
