"""Weak scaling on virtual CPU devices: the same loss on one device and on two, limits in the exit status; no times."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

import jax_knnconv

pytest.importorskip("flax.nnx", reason="the benchmarks extra is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(*arguments):
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(pathlib.Path(jax_knnconv.__file__).parents[1]), str(ROOT)]),
        "PYTHONSAFEPATH": "1",  # whatever lies beside the clone is not imported
    }
    command = [sys.executable, "-m", "benchmarks.weak_scaling", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT.parent, timeout=300)


def test_weak_scaling(tmp_path):
    out = tmp_path / "result.json"
    workloads = ("--workload", "knn", "--workload", "cifar10")
    done = run("--out", str(out), "--limit", "knn=1e9", "--rounds", "1", *workloads)
    assert done.returncode == 1, done.stderr  # no speedup reaches that limit
    found = json.loads(out.read_text())["weak_scaling"]
    assert set(found) == {"knn", "cifar10"}
    for entry in found.values():
        assert entry["devices"] == 2
        assert entry["losses_alone"] == pytest.approx([entry["loss_together"]] * 2, rel=1e-4)
        alone = sum(times["min_ms"] for times in entry["alone"])
        assert entry["speedup"] == pytest.approx(alone / entry["together"]["min_ms"])  # of the one round


def test_too_many_devices():
    done = run("--devices", "3")
    assert done.returncode == 2
    assert "--devices: got 3, expected 2 to 2" in done.stderr
