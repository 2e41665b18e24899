"""Where a GPU's compiled targets cannot run: one warning with the reason, and what runs instead, gradients too."""

from __future__ import annotations

import re
import types

import fallback_checks
import jax
import numpy as np
import pytest

import jax_knnconv as jkc
from jax_knnconv import _ffi, _readiness, _smoke

pytestmark = pytest.mark.usefixtures("on_gpu")

NO_TILE = {"tile": np.array([48, 64, 1], np.int64)}  # which does not ship, so that launchers refuse by themselves


def test_unsupported_architecture(fresh):
    """Products of bfloat16 on a GPU of Turing's age."""
    turing = types.SimpleNamespace(compute_capability="7.5", device_kind="a GPU", platform="gpu")
    fresh.setattr(_readiness, "jax", types.SimpleNamespace(**{**vars(jax), "local_devices": lambda backend: [turing]}))
    (message,) = fallback_checks.falls_back(fallback_checks.operands("bfloat16"))
    assert "products of bfloat16 need compute capability 8.0, a GPU has 7.5" in message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_missing_code_object(fresh, dtype):
    def fail(operation, device, family=None):
        raise RuntimeError("launch.h:1: gpuFuncSetAttribute(...): no kernel image is available")

    fresh.setattr(_smoke, "error", fail)
    (message,) = fallback_checks.falls_back(fallback_checks.operands(dtype))
    assert "no kernel image is available" in message


def test_backward_without_the_cast(fresh):
    fallback_checks.backward_without_the_cast(fresh, "cuda")


def test_calls_that_fail(fresh):
    call = _ffi.call

    def with_tile(operation, results, *operands, **attributes):
        tile = {} if operation == "cast_operands" else NO_TILE
        return call(operation, results, *operands, **attributes, **tile)

    fresh.setattr(_ffi, "call", with_tile)
    told = fallback_checks.falls_back(fallback_checks.operands("float16"))
    assert len(told) == 1
    assert re.search(r"its smoke call failed: JaxRuntimeError: INVALID_ARGUMENT: .*gpu/\w+\.h:\d+: ", told[0])


@pytest.mark.parametrize("family", [None, "halo", "hopper"])
@pytest.mark.parametrize("operation", _ffi.TARGETS)
def test_smoke_calls_are_right(operation, family, gpu, request):
    if family == "hopper":
        request.getfixturevalue("hopper")
    if family is None or operation != "cast_operands":
        assert _smoke.error(operation, gpu, family) == 0


def spoil_hopper(fresh, spoil):
    """Smoke calls of Hopper's kernels go through `spoil`."""
    call = _ffi.call

    def spoiled(operation, results, *operands, **attributes):
        if attributes.get("kernel") != "hopper":
            return call(operation, results, *operands, **attributes)
        return spoil(lambda **more: call(operation, results, *operands, **attributes, **more))

    fresh.setattr(_ffi, "call", spoiled)


def kernels(pairs):
    """The kernels that the programs of `fallback_checks.results` force."""
    table = jkc.NeighborTable(fallback_checks.INDICES, num_inputs=3)
    functions = (lambda x, w: jkc.knn_conv(x, w, table)), jkc.conv2d
    gradients = [jax.jit(lambda *pair, f=f: jax.vjp(f, *pair)[1](f(*pair))) for f in functions]
    texts = [gradient.lower(*pair).as_text() for gradient, pair in zip(gradients, pairs, strict=True)]
    return {kernel for text in texts for kernel in re.findall(r'kernel = "(\w+)"', text)}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_kernels_run_where_hopper_fails(fresh, dtype):
    pairs = fallback_checks.operands(dtype, batch=64, channels=64)
    assert kernels(pairs) == set()
    fresh.setattr(_readiness, "_proven", set())
    spoil_hopper(fresh, lambda run: run(**NO_TILE))
    told = fallback_checks.falls_back(pairs, implementation="wmma")
    assert len(told) == 1
    assert re.search(
        r"the 'hopper' kernels of \w+ cannot run on cuda: its smoke call failed: .*gpu/\w+\.h:\d+", told[0]
    )
    jax.clear_caches()
    assert kernels(pairs) == {"wmma"}
    hopper = jkc.KernelConfig(kernel="hopper")
    with pytest.raises(ValueError, match=r"KernelConfig.kernel: got 'hopper', which cannot run dense_forward here"):
        jkc.conv2d(*pairs[1], config=hopper)


@pytest.mark.usefixtures("hopper")
def test_other_kernels_run_where_hopper_is_wrong(fresh):
    spoil_hopper(fresh, lambda run: [value + 1 for value in run()])
    told = fallback_checks.falls_back(fallback_checks.operands("float16", batch=64, channels=64), "wmma")
    assert told
    assert all("its smoke call was wrong by 1.0" in message for message in told)
