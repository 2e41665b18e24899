"""Channels that are rounded up for a GPU's handlers: what a program lowered for one passes and cuts, without a GPU."""

from __future__ import annotations

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv as jkc
from jax_knnconv import _ffi

pytestmark = pytest.mark.usefixtures("modules")

BATCH, SIDE, NODES, K = 16, 16, 500, 9
TABLE = jkc.NeighborTable(np.zeros((NODES, K), np.int32), num_inputs=NODES)


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def program(function, *operands, platform="cuda"):
    return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,)).as_text()


def call_types(text, operation):
    """Types of the first three operands and of the results of an operation's one call."""
    (line,) = [line for line in text.splitlines() if "custom_call" in line and f"_{operation}_v1" in line]
    given, results = line.rpartition(" : ")[2].split(" -> ")
    return re.findall(r"tensor<(\S+?)>", given)[:3], re.findall(r"tensor<(\S+?)>", results)


def dense(channels, outputs, batch=BATCH, dtype="bfloat16", kernel=3):
    """The passes of a dense convolution, with their operands."""
    x, g = struct(batch, SIDE, SIDE, channels, dtype=dtype), struct(batch, SIDE, SIDE, outputs, dtype=dtype)
    weight, bias = struct(kernel, kernel, channels, outputs, dtype=dtype), struct(outputs, dtype="float32")
    return {
        "dense_forward": (jkc.conv2d, (x, weight, bias)),
        "dense_dinput": (lambda g, w: jkc.conv2d_dinput(g, w, x.shape), (g, weight)),
        "dense_dweight": (lambda x, g: jkc.conv2d_dweight(x, g, (kernel, kernel)), (x, g)),
    }


def knn(channels, outputs, batch=BATCH):
    """The passes over a table, with their operands."""
    x, g, weight = struct(batch, NODES, channels), struct(batch, NODES, outputs), struct(K, channels, outputs)
    return {
        "knn_forward": (lambda x, w: jkc.knn_conv(x, w, TABLE), (x, weight)),
        "knn_dinput": (lambda g, w: jkc.knn_dinput(g, w, TABLE), (g, weight)),
        "knn_dweight": (lambda x, g: jkc.knn_dweight(x, g, TABLE), (x, g)),
        "knn_backward": (lambda g, x, w: jkc.knn_backward(g, x, w, TABLE), (g, x, weight)),
    }


ROUNDED = {
    "dense_forward": (["16x16x16x64xbf16", "3x3x64x72xbf16", "72xf32"], ["16x16x16x72xbf16"]),
    "dense_dinput": (["16x16x16x72xbf16", "3x3x64x72xbf16"], ["16x16x16x64xbf16"]),
    "dense_dweight": (["16x16x16x64xbf16", "16x16x16x72xbf16"], ["3x3x64x72xbf16", "72xf32"]),
    "knn_forward": (["16x500x64xbf16", "9x64x72xbf16", "0xf32"], ["16x500x72xbf16"]),
    "knn_dinput": (["16x500x72xbf16", "9x64x72xbf16"], ["16x500x64xbf16"]),
    "knn_dweight": (["16x500x64xbf16", "16x500x72xbf16"], ["9x64x72xbf16", "72xf32"]),
    "knn_backward": (
        ["16x500x72xbf16", "16x500x64xbf16", "9x64x72xbf16"],
        ["16x500x64xbf16", "9x64x72xbf16", "72xf32"],
    ),
}


@pytest.mark.parametrize("operation", ROUNDED)
def test_operands_and_results_have_whole_lines(operation):
    function, operands = (dense(63, 65) | knn(63, 65))[operation]
    given, results = call_types(program(function, *operands), operation)
    expected, expected_results = ROUNDED[operation]
    assert given[: len(expected)] == expected
    assert results[: len(expected_results)] == expected_results
    shapes = [value.shape for value in jax.tree.leaves(jax.eval_shape(function, *operands))]
    assert all(shape[-1] in (63, 65) for shape in shapes)


def test_a_float32_x_is_rounded_in_the_same_pass():
    x, weight = struct(BATCH, SIDE, SIDE, 63, dtype="float32"), struct(3, 3, 63, 64)
    text = program(lambda x, w: jkc.conv2d(x, w, compute_dtype="bfloat16"), x, weight)
    assert call_types(text, "dense_forward")[0][0] == "16x16x16x64xbf16"


AS_THEY_ARE = {
    "whole lines": (dense(64, 72), ["64x", "72x"]),
    "a small call": (dense(63, 65, batch=1), ["63x", "65x"]),
    "few channels": (dense(17, 64, batch=64), ["17x", "64x"]),
    "few outputs": ({"dense_forward": dense(64, 17, batch=64)["dense_forward"]}, ["64x", "17x"]),
    "the most that are few": (dense(32, 63, batch=64), ["32x", "63x"]),
    "the most that are few outputs": (
        {name: call for name, call in dense(63, 32, batch=64).items() if name != "dense_dweight"},
        ["63x", "32x"],
    ),
    "points": (knn(4, 65, batch=512), ["4x", "65x"]),
    "too many zeros": (knn(5, 1, batch=4096), ["5x", "1x"]),
}


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_calls_that_keep_their_channels(case):
    calls, sizes = AS_THEY_ARE[case]
    for operation, (function, operands) in calls.items():
        given, _ = call_types(program(function, *operands), operation)
        for aval, found in zip(operands[:2], given, strict=False):
            assert found.startswith("x".join(map(str, aval.shape)) + "x"), operation
        assert any(size in found for size in sizes for found in given)


@pytest.mark.parametrize(
    ("channels", "outputs", "operation", "lines"),
    [
        (33, 63, "dense_forward", "3x3x40x64"),
        (32, 65, "dense_forward", "3x3x32x72"),
        (63, 33, "dense_dinput", "3x3x64x40"),
        (65, 32, "dense_dinput", "3x3x72x32"),
        (63, 32, "dense_dweight", "3x3x64x32"),
        (5, 9, "knn_forward", "9x8x16"),
    ],
)
def test_one_more_is_not_few(channels, outputs, operation, lines):
    function, operands = (dense(channels, outputs, batch=64) | knn(channels, outputs, batch=512))[operation]
    given, results = call_types(program(function, *operands), operation)
    assert f"{lines}xbf16" in (*given, *results)


def test_one_tap_is_not_few():
    """The kernels of few channels take calls of more taps than one."""
    function, operands = dense(17, 63, batch=256, kernel=1)["dense_forward"]
    assert call_types(program(function, *operands), "dense_forward")[0][:2] == ["256x16x16x24xbf16", "1x1x24x64xbf16"]


@pytest.mark.parametrize(
    ("config", "lines"), [({"vec": False}, "63"), ({"bm": 128}, "64"), ({"kernel": "hopper"}, "64")]
)
def test_configs(config, lines):
    x, weight = struct(BATCH, SIDE, SIDE, 63), struct(3, 3, 63, 64)
    text = program(lambda x, w: jkc.conv2d(x, w, config=jkc.KernelConfig(**config)), x, weight)
    assert call_types(text, "dense_forward")[0][0] == f"16x16x16x{lines}xbf16"


def test_sizes_without_a_value_keep_their_channels():
    (batch,) = jax.export.symbolic_shape("b")
    checks = [jax.export.DisabledSafetyCheck.custom_call(_ffi.target_name("dense_forward"))]
    weight = jnp.ones((3, 3, 63, 64), "bfloat16")
    exported = jax.export.export(jax.jit(lambda x: jkc.conv2d(x, weight)), platforms=["cuda"], disabled_checks=checks)
    assert "x16x16x64xbf16" in exported(struct(batch, SIDE, SIDE, 63)).mlir_module()  # y
    assert "stablehlo.pad" not in exported(struct(batch, SIDE, SIDE, 63)).mlir_module()


def test_other_platforms_keep_their_channels(modules):
    modules["cpu"] = _ffi.Backend(None, modules["cuda"].targets, frozenset(["cpu"]), None)
    function, operands = dense(63, 65)["dense_forward"]
    assert call_types(program(function, *operands, platform="cpu"), "dense_forward")[0][0] == "16x16x16x63xbf16"
