"""Which dtypes go to the GPU's kernels: decided without one."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_knnconv import _readiness


def _operands(*dtypes):
    return [jax.ShapeDtypeStruct((2, 2), dtype) for dtype in dtypes]


@pytest.mark.parametrize(
    ("dtypes", "taken"),
    [
        ((np.float32, np.float32, np.int32), False),
        ((np.float16, np.float16, np.float32), True),
        ((np.float32, jnp.bfloat16), True),
    ],
)
def test_one_operand_must_be_of_16_bits(dtypes, taken):
    assert (_readiness.takes("knn_forward", "cuda", _operands(*dtypes)) is None) == taken
    assert _readiness.takes("knn_forward", "cpu", _operands(*dtypes)) is None
    assert _readiness.takes("cast_operands", "cuda", _operands(np.float32, np.float32)) is None


@pytest.mark.parametrize(("capability", "runs"), [("7.5", False), ("8.0", True), ("12.0", True)])
def test_bfloat16_needs_sm_80(monkeypatch, capability, runs):
    device = types.SimpleNamespace(compute_capability=capability, device_kind="a GPU")
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    reason = _readiness.lacks("cuda", _operands(jnp.bfloat16, jnp.bfloat16))
    assert (reason is None) == runs
    if reason is not None:
        assert reason == "products of bfloat16 need compute capability 8.0, a GPU has 7.5"
    assert _readiness.lacks("cuda", _operands(np.float16)) is None


@pytest.mark.parametrize(("capability", "runs"), [("8.9", False), ("9.0", True), ("10.0", False)])
def test_hopper_needs_exactly_sm_90(monkeypatch, capability, runs):
    device = types.SimpleNamespace(compute_capability=capability, device_kind="a GPU")
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    reason = _readiness.lacks("cuda", _operands(np.float16), "hopper")
    assert (reason is None) == runs
    if reason is not None:
        assert reason == f"the 'hopper' kernels need compute capability 9.0, a GPU has {capability}"


def test_every_kind_of_gpu_here_counts(monkeypatch):
    devices = [types.SimpleNamespace(compute_capability=c, device_kind=f"GPU {c}") for c in ("9.0", "9.0", "7.5")]
    monkeypatch.setattr(jax, "local_devices", lambda backend: devices)
    assert "GPU 7.5 has 7.5" in _readiness.lacks("cuda", _operands(jnp.bfloat16))
    assert "GPU 7.5 has 7.5" in _readiness.lacks("cuda", _operands(np.float16), "hopper")
    assert _readiness.lacks("cuda", _operands(np.float16)) is None
