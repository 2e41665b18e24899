"""Settings of the whole suite: hypothesis profile, child processes, and what happens to GPU tests without a GPU."""

from __future__ import annotations

import importlib.util
import os
import pathlib

import hypothesis
import jax
import pytest

# Shapes are drawn anew only when asked for, so that a red run can be repeated; compiling leaves no deadline a meaning.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=200)
hypothesis.settings.register_profile("brief", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("explore", deadline=None, derandomize=False, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share a GPU, of which JAX would give the first one most of the memory
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


# Where the sources are tested (`make dev`), processes that tests start find them from any folder, too.
_ROOT = pathlib.Path(__file__).parents[1]
_package = importlib.util.find_spec("jax_knnconv")
if _package is not None and _package.origin == str(_ROOT / "jax_knnconv" / "__init__.py"):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))


def has_gpu() -> bool:
    """Whether JAX sees a GPU."""
    return any(device.platform in ("gpu", "cuda", "rocm") for device in jax.devices())


def pytest_collection_modifyitems(items):
    """Skip tests marked gpu where there is none, unless the run demands one."""
    if not any("gpu" in item.keywords for item in items) or has_gpu():
        return
    if os.environ.get("JAX_KNNCONV_REQUIRE_GPU") == "1":
        raise pytest.UsageError("JAX_KNNCONV_REQUIRE_GPU=1, but JAX sees no GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture
def fresh(monkeypatch):
    """No memory of earlier smoke calls and warnings; compiled programs are compiled anew."""
    from jax_knnconv import _readiness

    monkeypatch.setattr(_readiness, "_proven", set())
    monkeypatch.setattr(_readiness, "_warned", set())
    jax.clear_caches()
    yield monkeypatch
    jax.clear_caches()


@pytest.fixture
def modules(fresh):
    """Modules for GPUs with all targets and the kernels for every call, which are lowered for and never called."""
    from jax_knnconv import _ffi

    targets = frozenset(map(_ffi.target_name, _ffi.TARGETS))
    found = {platform: _ffi.Backend(None, targets, frozenset(["wmma"]), None) for platform in ("cuda", "rocm")}
    fresh.setattr(_ffi, "_loaded", found)
    fresh.setattr(jax, "local_devices", lambda backend=None: (_ for _ in ()).throw(RuntimeError("no GPU here")))
    return found
