"""Where a GPU's compiled targets cannot run: one warning with the reason, and what "xla" gives, gradients too."""

from __future__ import annotations

import re
import types

import fallback_checks
import jax
import numpy as np
import pytest

import jax_knnconv as jkc
from jax_knnconv import _ffi, _readiness, _smoke


@pytest.fixture
def fresh(monkeypatch, gpu):
    """No memory of earlier smoke calls and warnings; compiled programs are compiled anew."""
    monkeypatch.setattr(_readiness, "_proven", set())
    monkeypatch.setattr(_readiness, "_warned", set())
    with jax.default_device(gpu):
        yield monkeypatch
    jax.clear_caches()


def test_unsupported_architecture(fresh, gpu):
    """Products of bfloat16 on a GPU of Turing's age."""
    turing = types.SimpleNamespace(compute_capability="7.5", device_kind="a GPU", platform="gpu")
    fresh.setattr(_readiness, "jax", types.SimpleNamespace(**{**vars(jax), "local_devices": lambda backend: [turing]}))
    (message,) = fallback_checks.falls_back(jkc, "bfloat16")
    assert "products of bfloat16 need compute capability 8.0, a GPU has 7.5" in message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_missing_code_object(fresh, dtype):
    def fail(operation, device, family=None):
        raise RuntimeError("launch.h:1: gpuFuncSetAttribute(...): no kernel image is available")

    fresh.setattr(_smoke, "error", fail)
    (message,) = fallback_checks.falls_back(jkc, dtype)
    assert "no kernel image is available" in message


def test_backward_without_the_cast(fresh):
    told, text = fallback_checks.without_cast(jkc, _smoke, fresh)
    assert len(told) == 1
    assert "the compiled cast_operands cannot run on cuda" in told[0]
    assert "jax_knnconv_cast_operands_v1" not in text
    for operation in ("dense_dinput", "dense_dweight"):
        assert f"jax_knnconv_{operation}_v1" in text


def test_calls_that_fail(fresh):
    """Launchers that are asked for a tile that does not ship refuse by themselves."""
    call = _ffi.call

    def with_tile(operation, results, *operands, **attributes):
        tile = {} if operation == "cast_operands" else {"tile": np.array([48, 64, 1], np.int64)}
        return call(operation, results, *operands, **attributes, **tile)

    fresh.setattr(_ffi, "call", with_tile)
    told = fallback_checks.falls_back(jkc, "float16")
    assert len(told) == 1
    assert re.search(r"its smoke call failed: JaxRuntimeError: INVALID_ARGUMENT: .*gpu/\w+\.h:\d+: ", told[0])
