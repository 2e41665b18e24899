"""Which implementation runs: the fallback and its one warning, each way a compiled path can fail, and recovery."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv as jkc
from jax_knnconv import _ffi, _readiness, _smoke

TABLE = jkc.NeighborTable(np.array([[0, 1], [2, -1], [1, 1]]), num_inputs=3)
X, W = jnp.arange(6.0).reshape(3, 2), jnp.arange(8.0).reshape(2, 2, 2)


def loss(x, w, implementation="auto"):
    return (jkc.knn_conv(x, w, TABLE, implementation=implementation) ** 2).sum()


def text(function, *args):
    return jax.jit(function).lower(*args).as_text()


@pytest.fixture
def fresh(fresh):
    """No memory of loaded modules either."""
    fresh.setattr(_ffi, "_loaded", {})
    return fresh


REAL = importlib.import_module("jax_knnconv._cpu")


def module(**changes):
    """The CPU module with some of its functions replaced."""
    names = {name: getattr(REAL, name) for name in ("registrations", "ffi_version", "implementations", "isa")}
    return types.SimpleNamespace(**{**names, **changes})


def assert_falls_back(reason):
    """One warning that says why, once; the result and both gradients are those of "xla"."""
    with pytest.warns(jkc.FallbackWarning, match=reason) as caught:
        value, grads = jax.value_and_grad(loss, (0, 1))(X, W)
    told = [str(w.message) for w in caught]
    assert len(told) == len(set(told))
    want, want_grads = jax.value_and_grad(loss, (0, 1))(X, W, "xla")
    assert value == want
    for got, right in zip(grads, want_grads, strict=True):
        np.testing.assert_array_equal(got, right)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.clear_caches()
        assert loss(X, W) == want


def test_compiled_targets_are_used():
    lowered = text(jax.grad(loss, (0, 1)), X, W)
    for operation in ("knn_forward", "knn_dinput", "knn_dweight"):
        assert _ffi.target_name(operation) in lowered
    assert "jax_knnconv_" not in text(lambda x, w: loss(x, w, "xla"), X, W)


def test_missing_module(fresh):
    def fail(name):
        raise ImportError("libsomething.so: cannot open shared object file")

    fresh.setattr(_ffi.importlib, "import_module", fail)
    assert_falls_back("libsomething.so")


def test_wrong_ffi_version(fresh):
    fresh.setattr(_ffi.importlib, "import_module", lambda name: module(ffi_version=lambda: (0, 99)))
    major, minor = _ffi.runtime_version()
    assert_falls_back(rf"built for XLA FFI 0\.99.*speaks {major}\.{minor}")


def test_missing_target(fresh):
    only = {n: c for n, c in REAL.registrations().items() if "knn" not in n}
    fresh.setattr(_ffi.importlib, "import_module", lambda name: module(registrations=lambda: only))
    assert_falls_back("not registered")


def test_failed_smoke_call(fresh):
    def fail(operation, device, family=None):
        raise RuntimeError("no kernel image is available")

    fresh.setattr(_smoke, "error", fail)
    assert_falls_back("no kernel image is available")


def test_wrong_smoke_result(fresh):
    fresh.setattr(_smoke, "error", lambda operation, device, family=None: 0.5)
    assert_falls_back("wrong by 0.5")


def test_recovers_when_the_path_works_again(fresh):
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(_smoke, "error", lambda operation, device, family=None: 1.0)
        with pytest.warns(jkc.FallbackWarning):
            assert "jax_knnconv_knn_forward" not in text(loss, X, W)
    jax.clear_caches()
    assert "jax_knnconv_knn_forward" in text(loss, X, W)
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(_smoke, "error", lambda operation, device, family=None: 1.0)
        broken.setattr(_readiness, "_proven", set())
        jax.clear_caches()
        with pytest.warns(jkc.FallbackWarning):  # told again: it had worked in between
            text(loss, X, W)


def test_every_kind_of_device_is_asked_once(fresh):
    """A program runs on whichever device its operands are on, so one kind that fails turns a platform down."""
    asked = []

    def answer(operation, device, family=None):
        asked.append(device.device_kind)
        return float(device.device_kind == "broken")

    def on(*kinds):
        devices = [types.SimpleNamespace(platform="cpu", device_kind=kind) for kind in kinds]
        fresh.setattr(jax, "local_devices", lambda backend=None: devices)
        return _readiness.why_not("knn_forward", "cpu")

    fresh.setattr(_smoke, "error", answer)
    assert on("old", "old", "new", "old") is None
    assert sorted(asked) == ["new", "old"]
    assert on("new", "old") is None
    assert len(asked) == 2
    assert on("old", "broken") == "its smoke call was wrong by 1.0"
    assert asked[2:] == ["broken"]


@pytest.mark.parametrize("name", ["wmma", "hopper"])
def test_implementation_of_another_platform(fresh, name):
    if any(device.platform != "cpu" for device in jax.devices()):
        pytest.skip("asks for a machine without a GPU")
    with pytest.warns(jkc.FallbackWarning, match=f"'{name}' does not exist on platform 'cpu'"):
        value = loss(X, W, name)
    assert value == loss(X, W, "xla")


def run_fresh(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


USE = "y = jax_knnconv.conv2d(jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1))); assert float(y.sum()) == 49, y"


@pytest.mark.parametrize(
    "code",
    [
        f"import jax_knnconv, jax, jax.numpy as jnp; jax.devices(); {USE}",
        f"import jax, jax.numpy as jnp; jax.devices(); import jax_knnconv; {USE}",
    ],
    ids=["import first", "devices first"],
)
def test_import_order(code):
    """Case 14."""
    for environment in ({}, {"JAX_PLATFORMS": "cpu"}):
        done = run_fresh(code, **environment)
        assert done.returncode == 0, done.stderr


def test_import_starts_no_backend():
    """Importing must leave the choice of platform to the program."""
    done = run_fresh(
        "import jax_knnconv, jax; jax.config.update('jax_num_cpu_devices', 3); assert jax.device_count() == 3"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_every_instruction_set_agrees(isa):
    """The narrower inner loops give the known answers too (a set that this processor lacks falls to the next)."""
    done = run_fresh(
        "import sys, jax_knnconv as k; r = k.doctor(); print(r); sys.exit(not r.ok)", JAX_KNNCONV_CPU_ISA=isa
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_jit_and_with_debug_nans():
    with jax.disable_jit():
        assert loss(X, W) == loss(X, W, "xla")
        jax.grad(loss, (0, 1))(X, W)
    with jax.debug_nans(True):
        loss(X, W)
        with pytest.raises(FloatingPointError):
            loss(X.at[0, 0].set(jnp.nan), W)


def test_doctor_reports_each_target():
    report = jkc.doctor()
    assert report.ok, str(report)
    assert {check.target for check in report.checks if check.platform == "cpu"} == {
        _ffi.target_name(operation) for operation in _ffi.TARGETS
    }
    for word in ("jaxlib", "XLA FFI", "cpu module"):
        assert word in str(report)


def test_doctor_tells_what_is_wrong(monkeypatch):
    monkeypatch.setattr(
        _smoke, "error", lambda operation, device, family=None: 2.0 if operation == "knn_dinput" else 0.0
    )
    report = jkc.doctor()
    assert not report.ok
    (bad,) = [check for check in report.checks if not check.ok]
    assert (bad.target, bad.reason) == ("jax_knnconv_knn_dinput_v1", "wrong by 2.0")
    assert "NOT USED" in str(report)


def test_command_line():
    done = subprocess.run([sys.executable, "-m", "jax_knnconv"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jax_knnconv_dense_forward_v1" in done.stdout
