"""The breakdowns: what they measure, and their tables."""

import io
import json
import subprocess

import numpy as np
import pytest
from breakdown_cases import DENSE, KNN, act_as_accelerator
from rich.console import Console

from benchmarks import (
    breakdown,
    breakdown_report,
    cudnn,
    machine,
    operands,
    peers,
    shapes,
)

# The harness measures whatever runs, with compiled kernels or without.
pytestmark = pytest.mark.filterwarnings("ignore::jax_knnconv.FallbackWarning")

SETTINGS = breakdown.Settings(repeats=2, budget_s=0, sample_s=0)


@pytest.fixture
def accelerator(monkeypatch):
    act_as_accelerator(monkeypatch)


def measured(shape, pass_name="forward", dtype="float32", settings=SETTINGS):
    entry = breakdown.Entry(shape, pass_name, dtype)
    programs = {name: found for (_, name), found in breakdown.compile_all([entry], settings).items()}
    return breakdown.measure(entry, operands.make(shape, dtype), programs, settings)


# Measurements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pass_name", shapes.PASSES)
def test_gathered_product_is_the_pass(pass_name):
    x, weight, g = (np.asarray(value, np.float64) for value in operands.make(KNN, "float32", count=1).sets[0])
    indices = operands.neighbour_indices(KNN)
    product = peers.gathered_product(KNN, pass_name)
    found = product.multiply(*product.arrange(*map(np.float32, (x, weight, g)), indices))
    if pass_name == "forward":
        expected = np.einsum("bmkc,kco->bmo", x[:, indices], weight)
    elif pass_name == "dweight":
        expected = np.einsum("bmkc,bmo->kco", x[:, indices], g)
    else:  # rows of g as numerous as in forward, not those that dx needs
        expected = np.einsum("bmko,kco->bmc", g[:, indices % KNN.rows], weight)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "sides"), [(KNN, {"ours", "peer", "gemm"}), (DENSE, {"ours", "peer"})])
def test_sides(shape, sides):
    record = measured(shape, "dweight")
    assert set(record["sides"]) == sides
    assert record["agrees"]
    assert record["failures"] == {}
    assert record["tflops"] == pytest.approx(
        shapes.operations(shape) / record["sides"]["ours"]["device"]["median_ms"] / 1e9, rel=1e-6
    )
    for side in record["sides"].values():
        assert 0 < side["device"]["min_ms"] <= side["device"]["median_ms"]
        assert side["temporary_bytes"] >= 0


def test_operands_of_both_sides_take_as_much_memory(monkeypatch):
    monkeypatch.setattr(machine, "size", lambda: "gpu")
    for shape in [*shapes.knn_shapes("gpu"), *shapes.small_batch_shapes()]:
        sides = breakdown.sides_of(breakdown.Entry(shape, "forward", "bfloat16"), SETTINGS)
        ours, gemm = sides["ours"], sides["gemm"]
        assert gemm.calls == ours.calls
        together, matrix = ours.sets * shapes.moved_bytes(shape, 2), shapes.gathered_bytes(shape, 2)
        if 2 < gemm.sets < ours.sets:  # with two, what a call reads was last read a matrix ago
            assert together - matrix < gemm.sets * matrix <= together


def test_accelerator_is_timed_apart_from_its_host(accelerator):
    record = measured(KNN)
    assert record["agrees"]
    for name, side in record["sides"].items():
        assert side["device"]["min_ms"] > 0
        assert side["host"]["min_ms"] > 0
        assert ("loop" in side) == (name != "gemm")


def test_long_calls_are_timed_one_by_one(accelerator, monkeypatch):
    monkeypatch.setattr(breakdown, "_LONG_S", 0)
    record = measured(KNN)
    for side in record["sides"].values():
        assert side["device"]["min_ms"] > 0
        assert "host" not in side


def test_wrong_result_does_not_agree(monkeypatch):
    right = peers.ours(KNN)
    monkeypatch.setattr(peers, "ours", lambda *_: lambda *operands: right(*operands).at[0, 0, 0].add(1))
    assert not measured(KNN)["agrees"]


def test_forced_kernels_stand_beside_ours(monkeypatch):
    whole = peers.ours

    def ours(shape, implementation, kernel):
        if kernel == "hopper":
            raise ValueError("kernel 'hopper' does not take this call\nand more")
        return whole(shape, implementation)

    monkeypatch.setattr(peers, "ours", lambda *arguments: lambda *operands: ours(*arguments)(*operands))
    record = measured(KNN, settings=SETTINGS._replace(kernels=("portable", "hopper")))
    assert set(record["sides"]) == {"ours", "peer", "gemm", "portable"}
    assert record["difference"]["portable"] == record["difference"]["ours"]
    assert record["failures"] == {"hopper": "kernel 'hopper' does not take this call"}
    assert record["agrees"]


def test_ours_that_fails_does_not_agree(monkeypatch):
    def fails(*_):
        raise ValueError("no kernel")

    monkeypatch.setattr(peers, "ours", lambda *_: fails)
    record = measured(KNN)
    assert not record["agrees"]
    assert record["failures"] == {"ours": "no kernel"}
    breakdown.finish([record], {"flops": {"float32": 1e9}, "bytes": 1e9})
    assert record["floor_ms"] > 0


def line(ours, peer, *, name="some shape", pass_name="forward", **more):
    sides = {"ours": ours, "peer": peer, **more}
    return {
        "name": name,
        "pass": pass_name,
        "dtype": "bfloat16",
        "sides": {
            side: {"device": {"min_ms": ms, "median_ms": ms}, "temporary_bytes": 2**20} for side, ms in sides.items()
        },
        "failures": {},
        "operations": 4_000_000,
        "moved_bytes": 3_000,
        "tflops": 123.4,
        "agrees": True,
    }


def test_ratios_and_floor():
    record = line(4.0, 10.0, cudnn=3.0)
    breakdown.finish([record], {"flops": {"bfloat16": 2e9}, "bytes": 1e9})
    assert record["floor_ms"] == 2
    assert record["gap"] == 2
    assert record["ratios"] == {"peer": 2.5, "cudnn": 0.75}


def test_times_that_noise_hides():
    """A side is a difference of samples: where it is not positive there is nothing to compare or to print."""
    records = [line(4.0, -0.001, cudnn=3.0), line(0.0, 3.0)]
    breakdown.finish(records, {"flops": {"bfloat16": 2e9}, "bytes": 1e9})
    assert records[0]["ratios"] == {"cudnn": 0.75}
    assert records[0]["failures"] == {"peer": "noise hides its time: -0.001 ms"}
    assert "ratios" not in records[1]
    assert "tflops" not in records[1]
    assert breakdown_report.summary(records) == ["cudnn / ours, forward: mean 0.75, worst 0.75 (some shape bfloat16)"]


# cuDNN -------------------------------------------------------------------------------------------------------------


def test_cudnn_is_asked_for_dense_16_bit_entries(accelerator, monkeypatch):
    entries = [
        breakdown.Entry(KNN, "forward", "bfloat16"),
        breakdown.Entry(DENSE, "forward", "float32"),
        breakdown.Entry(DENSE, "dinput", "bfloat16"),
        breakdown.Entry(DENSE, "dweight", "float16"),
    ]
    asked = []

    def process(command, *, input, **_):
        asked.extend(json.loads(input))
        return subprocess.CompletedProcess(command, 0, "a line of PyTorch's\n[[0.5, 0.25], []]\n", "")

    monkeypatch.setattr(cudnn.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", process)
    assert cudnn.measure(entries, 2) == {entries[2]: [0.5, 0.25]}
    assert [(job["pass"], job["dtype"], job["repeats"]) for job in asked] == [
        ("dinput", "bfloat16", 2),
        ("dweight", "float16", 2),
    ]
    assert all(shapes.from_json(job["shape"]) == DENSE for job in asked)
    failed = subprocess.CompletedProcess([], 1, "", "no such GPU")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="no such GPU"):
        cudnn.measure(entries, 2)


def test_cudnn_needs_a_gpu():
    assert cudnn.measure([breakdown.Entry(DENSE, "forward", "bfloat16")], 2) == {}


# Tables ------------------------------------------------------------------------------------------------------------


def test_tables():
    records = [line(4.0, 10.0, cudnn=3.0), line(2.0, 3.0, name="another", gemm=1.5, portable=8.0)]
    records[0]["failures"] = {"portable": "does not take this call"}
    breakdown.finish(records, {"flops": {"bfloat16": 2e9}, "bytes": 1e9})
    assert breakdown_report.others(records) == ["peer", "gemm", "cudnn", "portable"]
    console = Console(file=io.StringIO(), width=200)
    console.print(breakdown_report.entry_table(records))
    rows = [
        [cell.strip() for cell in row.split("│")[1:-1]] for row in console.file.getvalue().splitlines() if "│" in row
    ]
    first, second = rows
    assert first[3:15] == ["4", "123", "10", "2.5", "-", "-", "3", "0.75", "none", "-", "2", "2"]
    assert second[3:15] == ["2", "123", "3", "1.5", "1.5", "0.75", "-", "-", "8", "4", "2", "1"]
    assert breakdown_report.summary(records) == [
        "peer / ours, forward: mean 1.94, worst 1.50 (another bfloat16)",
        "gemm / ours, forward: mean 0.75, worst 0.75 (another bfloat16)",
        "cudnn / ours, forward: mean 0.75, worst 0.75 (some shape bfloat16)",
    ]
