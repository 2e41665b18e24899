"""The breakdowns as programs: whole runs, their result files and what they show."""

import json

import jax
import numpy as np
import pytest
from benchmark_cases import TINY_SHAPES
from breakdown_cases import DENSE, act_as_accelerator

from benchmarks import (
    breakdown,
    cifar10_breakdown,
    cifar10_step,
    dense_breakdown,
    field_cases,
    knn_breakdown,
    machine,
    shapes,
)

# The harness measures whatever runs, with compiled kernels or without.
pytestmark = pytest.mark.filterwarnings("ignore::jax_knnconv.FallbackWarning")


@pytest.fixture
def accelerator(monkeypatch):
    act_as_accelerator(monkeypatch)


@pytest.fixture
def ceilings(monkeypatch):
    monkeypatch.setattr(machine, "peaks", lambda dtypes: {"flops": dict.fromkeys(dtypes, 1e9), "bytes": 1e9})


@pytest.mark.parametrize(("program", "name"), [(knn_breakdown, "KNN"), (dense_breakdown, "dense")])
def test_result_file(program, name, ceilings, monkeypatch, tmp_path, capsys):
    kind = shapes.Knn if name == "KNN" else shapes.Dense
    chosen = next(shape for shape in TINY_SHAPES if isinstance(shape, kind))
    monkeypatch.setattr(shapes, f"{name.lower()}_shapes", lambda size: [chosen])
    monkeypatch.setattr(shapes, "small_batch_shapes", list)
    monkeypatch.setattr(field_cases, "hub_shapes", lambda size: [field_cases.Hubs(shapes.Knn(1, 2, 3, 9, 9, 2), 3)])
    path = tmp_path / "new" / "cpu.json"
    arguments = ["--dtypes", "float32", "--passes", "forward,dinput", "--repeats", "2", "--quick", "--out", str(path)]
    assert program.main(arguments) == 0
    results = json.loads(path.read_text())
    assert results["breakdown"] == name
    assert results["complete"]
    assert results["versions"]["jax"] == jax.__version__
    assert [entry["pass"] for entry in results["entries"]] == ["forward", "dinput"]
    for entry in results["entries"]:
        assert entry["agrees"]
        assert entry["ratios"]["peer"] > 0
        assert entry["gap"] > 0
    assert [check["case"] for check in results["checks"]] == ([3, 3] if name == "KNN" else [])
    shown = capsys.readouterr().out
    assert ("3 hubs of 3 taps" in shown) == (name == "KNN")
    assert chosen.name in shown
    assert "peer / ours, dinput" in shown


def test_disagreement_and_interruption(ceilings, monkeypatch, tmp_path):
    monkeypatch.setattr(shapes, "dense_shapes", lambda size: [DENSE])
    whole, done = breakdown.measure, []

    def interrupted(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(whole(*arguments) | {"agrees": False})
        return done[0]

    monkeypatch.setattr(breakdown, "measure", interrupted)
    path = tmp_path / "cpu.json"
    assert dense_breakdown.main(["--dtypes", "float32", "--quick", "--out", str(path)]) == 1
    results = json.loads(path.read_text())
    assert not results["complete"]
    assert len(results["entries"]) == 1
    assert results["entries"][0]["floor_ms"] > 0


def test_unknown_choice_is_refused(capsys):
    with pytest.raises(SystemExit):
        knn_breakdown.main(["--passes", "forward,backward"])
    assert "'backward' is none of forward, dinput, dweight" in capsys.readouterr().err


def test_cifar10(ceilings, accelerator, monkeypatch, tmp_path, capsys):
    def make_step(backend, dtype):
        def step(state, images, labels):
            loss = state * images.astype(dtype).mean() + labels.mean()
            return state - loss, loss

        return step, np.ones((), dtype)

    monkeypatch.setattr(cifar10_step, "make_step", make_step)
    monkeypatch.setattr(cifar10_step, "_BATCH", {"gpu": 2})
    monkeypatch.setattr(shapes, "cifar10_layers", lambda size: [DENSE])
    path = tmp_path / "gpu.json"
    arguments = ["--dtypes", "float32", "--repeats", "2", "--quick", "--out", str(path)]
    assert cifar10_breakdown.main(arguments) == 0
    results = json.loads(path.read_text())
    (step,) = results["steps"]
    assert step["name"] == "cifar10 batch 2"
    assert step["timed"] == "loop"
    assert step["agrees"]
    for side in ("ours", "peer"):
        for kind in ("device", "loop", "call", "host"):
            assert step[side][kind]["min_ms"] > 0
        assert step[side]["kernels"] == {"convolutions": 0, "others": 0, "waits": 0}  # on a CPU
    assert step["ratio"] == pytest.approx(step["peer"]["loop"]["min_ms"] / step["ours"]["loop"]["min_ms"])
    shown = capsys.readouterr().out
    assert "Training step" in shown
    assert "convolutions" in shown
