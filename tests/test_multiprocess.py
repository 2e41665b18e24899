"""The digits example on two processes of one machine trains to the losses of one."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

import jax_knnconv

pytest.importorskip("flax.nnx", reason="the examples extra is not installed")
pytest.importorskip("sklearn", reason="the examples extra is not installed")

SCRIPT = pathlib.Path(__file__).parents[1] / "examples" / "train_digits.py"


def start(out, *arguments):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(pathlib.Path(jax_knnconv.__file__).parents[1]),
        "XLA_FLAGS": "",
    }
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, str(SCRIPT), "--epochs", "1", "--target", "0.2", "--out", str(out), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def losses(out, *processes):
    try:
        for process in processes:
            said, _ = process.communicate(timeout=240)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [epoch["model"] for epoch in epochs] == ["dense", "knn"]
    return [epoch[name] for epoch in epochs for name in ("train_loss", "test_loss", "test_accuracy")]


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def test_two_processes_train_as_one(tmp_path):
    """Two virtual devices in each process, four parts of a batch."""
    alone = losses(tmp_path / "one", start(tmp_path / "one"))
    shared = ("--devices", "4", "--processes", "2", "--coordinator", f"127.0.0.1:{free_port()}")
    out = tmp_path / "two"
    both = losses(out, *(start(out, *shared, "--process", str(i)) for i in range(2)))
    np.testing.assert_allclose(both, alone, rtol=1e-3)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["devices"], summary["processes"]) == (4, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "3"), "--devices must divide a batch of 64, got 3"),
        (("--devices", "4", "--processes", "3"), "--processes must divide the 4 devices, got 3"),
        (("--devices", "2", "--processes", "2"), "--processes of 2 or more and --coordinator go together"),
        (("--process", "1"), r"--process must be in [0, 1), got 1"),
    ],
)
def test_what_does_not_fit_is_said(arguments, message, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import train_digits

    with pytest.raises(SystemExit):
        train_digits.main(list(arguments))
    assert message in capsys.readouterr().err
