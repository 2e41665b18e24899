"""Where compiled targets cannot run: one warning with the reason, and what "xla" gives, gradients too."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

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


def test_launches_that_fail():
    program = pathlib.Path(fallback_checks.__file__)
    paths = {"PYTHONPATH": str(pathlib.Path(jkc.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", program, "cpu"],
        env={**os.environ, **paths, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("fell back: ")
