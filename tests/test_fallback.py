"""Where compiled targets cannot run: one warning with the reason, and what "xla" gives, gradients too."""

from __future__ import annotations

import re

import fallback_checks
import jax
import pytest

from jax_knnconv import _smoke


@pytest.fixture(autouse=True)
def on_cpu():
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def test_missing_code_object(fresh):
    def fail(operation, device, family=None):
        raise RuntimeError("tap_gemm.cc:1: cudaFuncSetAttribute(...): no kernel image is available")

    fresh.setattr(_smoke, "error", fail)
    (message,) = fallback_checks.falls_back(fallback_checks.operands("float32"))
    assert "no kernel image is available" in message
    assert 'Using the pure-JAX implementation ("xla") instead' in message


def test_backward_without_the_cast(fresh):
    fallback_checks.backward_without_the_cast(fresh, "cpu")


def test_calls_that_fail(fresh):
    """Handlers that are given no room refuse by themselves; each reason is told once."""
    call = _smoke._call

    def without_room(*which):
        found = call(*which)
        return found._replace(workspace=[(0,) * len(shape) for shape in found.workspace])

    fresh.setattr(_smoke, "_call", without_room)
    told = fallback_checks.falls_back(fallback_checks.operands("float32"))
    assert len(set(told)) == len(told) > 0
    for message in told:
        assert re.search(
            r"its smoke call failed: JaxRuntimeError: INVALID_ARGUMENT: .*lib/cpu/\w+\.(h|cc):\d+: ", message
        )
