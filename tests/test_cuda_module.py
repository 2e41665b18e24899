"""The CUDA module, where it was built: it loads without a GPU and registers what the CPU module does."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from jax_knnconv import _ffi

if importlib.util.find_spec("jax_knnconv._cuda") is None:
    pytest.skip("built without the CUDA module", allow_module_level=True)


def test_same_targets_as_the_cpu_module():
    cuda, cpu = (importlib.import_module(f"jax_knnconv._{platform}") for platform in ("cuda", "cpu"))
    assert set(cuda.registrations()) == set(cpu.registrations()) == {_ffi.target_name(name) for name in _ffi.TARGETS}
    assert cuda.ffi_version() == cpu.ffi_version()
    assert set(cuda.implementations()) == {"wmma"}
