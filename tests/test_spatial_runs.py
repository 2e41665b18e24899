"""The example and the benchmark of spatial sharding, in processes of their own, where their devices are counted."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import jax_knnconv

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_python(*arguments):
    """Run a script or module as a person would, with the package that these tests see."""
    packages = os.pathsep.join([str(pathlib.Path(jax_knnconv.__file__).parents[1]), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": packages, "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_sphere_trains_to_the_same_error_on_four_devices_as_on_one():
    pytest.importorskip("optax", reason="the examples extra is not installed")
    pytest.importorskip("tqdm", reason="the examples extra is not installed")
    errors = {}
    for devices in (4, 1):
        options = ("--devices", devices, "--level", 2, "--steps", 12, "--target", 10)
        printed = run_python(ROOT / "examples" / "train_sphere.py", *options)
        errors[devices] = float(re.search(r"error of the last steps: ([\d.]+) of", printed)[1])
        rounds = [int(count) for count in re.findall(r"rows exchanged in (\d+) rounds", printed)]
        assert len(rounds) == 4
        assert all(count > 0 for count in rounds) == (devices > 1)
    assert errors[4] == pytest.approx(errors[1], rel=1e-3)


def test_benchmark_counts_rows_and_agrees_with_one_device(tmp_path):
    pytest.importorskip("rich", reason="the benchmarks extra is not installed")
    pytest.importorskip("psutil", reason="the benchmarks extra is not installed")
    out = tmp_path / "spatial.json"
    options = ("--devices", 4, "--level", 2, "--channels", 4, "--rounds", 1, "--budget", 0, "--out", out)
    printed = run_python("-m", "benchmarks.spatial", *options)
    results = json.loads(out.read_text())
    for entry in results["rows"]:
        assert 0 < entry["needed"] <= entry["sent"] <= 1.1 * entry["needed"]
        assert entry["sent"] <= entry["all_to_all"]
        assert entry["all_gather"] == 3 * 162
    ways = ["halo exchange", "all-gather, knn_conv", "x[:, idx], einsum", "one device, knn_conv"]
    assert [entry["way"] for entry in results["steps"]] == 3 * ways
    assert all(entry["difference"] < 1e-5 and entry["call"]["min_ms"] > 0 for entry in results["steps"])
    assert "halo exchange" in printed
