"""Where compiled targets cannot run: one warning with the reason, and what "xla" gives, gradients too."""

from __future__ import annotations

import re

import fallback_checks
import jax
import pytest

import jax_knnconv as jkc
from jax_knnconv import _dispatch, _smoke


@pytest.fixture
def fresh(monkeypatch):
    """No memory of earlier smoke calls and warnings; compiled programs are compiled anew."""
    monkeypatch.setattr(_dispatch, "_proven", set())
    monkeypatch.setattr(_dispatch, "_warned", set())
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield monkeypatch
    jax.clear_caches()


def test_missing_code_object(fresh):
    def fail(operation, device):
        raise RuntimeError("tap_gemm.cc:1: cudaFuncSetAttribute(...): no kernel image is available")

    fresh.setattr(_smoke, "error", fail)
    (message,) = fallback_checks.falls_back(jkc, "float32")
    assert "no kernel image is available" in message
    assert 'Using the pure-JAX implementation ("xla") instead' in message


def test_backward_without_the_cast(fresh):
    told, text = fallback_checks.without_cast(jkc, _smoke, fresh)
    assert len(told) == 1
    assert "the compiled cast_operands cannot run on cpu" in told[0]
    assert "jax_knnconv_cast_operands_v1" not in text
    for operation in ("dense_dinput", "dense_dweight"):
        assert f"jax_knnconv_{operation}_v1" in text


def test_calls_that_fail(fresh):
    """Handlers that are given no room refuse by themselves; each reason is told once."""
    for room in "_PACKED", "_DENSE_PARTIALS", "_KNN_PARTIALS":
        fresh.setattr(_smoke, room, (0,) if room == "_PACKED" else (0, 0))
    told = fallback_checks.falls_back(jkc, "float32")
    assert len(set(told)) == len(told) > 0
    for message in told:
        assert re.search(
            r"its smoke call failed: JaxRuntimeError: INVALID_ARGUMENT: .*lib/cpu/\w+\.(h|cc):\d+: ", message
        )
