"""The benchmarks' tables, result files, checks of cases and training steps."""

import io
import json

import jax
import numpy as np
import pytest
from benchmark_cases import ROOT, SHORT, TINY_SHAPES
from rich.console import Console

from benchmarks import cifar10_step, compare, field_cases, harness, machine, memory, report, run, shapes

# The harness measures whatever runs, with compiled kernels or without.
pytestmark = pytest.mark.filterwarnings("ignore::jax_knnconv.FallbackWarning")
MEGABYTE = 2**20


# Reports -----------------------------------------------------------------------------------------------------------


def comparison(ratio, *, name="2x7x9 3->5 3x3", agrees=True, implementation="compiled", timed="call"):
    times = {kind: {"min_ms": 1.25, "median_ms": 1.5} for kind in dict.fromkeys(["call", timed, "host"])}
    side = {**times, "temporary_bytes": 3 * MEGABYTE, "resident_bytes": None}
    return {
        "name": name,
        "pass": "forward",
        "dtype": "float32",
        "timed": timed,
        "ours": {**side, "implementation": implementation},
        "peer": side,
        "ratio": ratio,
        "paired_ratio": ratio,
        "cpu_ratio": ratio,
        "floor_ms": 0.5,
        "gflops": 123.4,
        "agrees": agrees,
    }


def rendered(*renderables):
    console = Console(file=io.StringIO(), width=240)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()


def test_summary():
    summary = report.summarise([comparison(0.5, name="slow one"), comparison(2.0), comparison(1.0, agrees=False)])
    assert summary["comparisons"] == 3
    assert summary["geometric_mean"] == pytest.approx(1)
    assert (summary["worst"], summary["worst_at"]) == (0.5, "slow one forward float32")
    assert summary["below_0.9"] == 1
    assert summary["fallbacks"] == 0
    assert summary["disagreements"] == ["2x7x9 3->5 3x3 forward float32"]
    step = {"name": "a step", "dtype": "float16", "agrees": False}
    assert report.summarise([], [step]) == {"comparisons": 0, "disagreements": ["a step float16"]}


def test_comparison_table():
    rows = rendered(report.comparison_table([comparison(0.5, agrees=False), comparison(2.25, implementation="xla")]))
    assert "host ms" not in rows
    wrong, fallback = (line for line in rows.splitlines() if "3->5" in line)
    for text in ("WRONG", "0.5 ", "1.25", "123", " 3 ", " - "):
        assert text in wrong
    assert "(fallback)" in fallback
    assert "2.25" in fallback
    on_device = rendered(report.comparison_table([comparison(1.0, timed="device")]))
    assert "host ms" in on_device


def test_check_and_step_tables():
    check = {"case": 35, "what": "dinput of a strided one", "value": 4.5, "limit": 3, "unit": "x forward", "ok": False}
    text = rendered(report.check_table([check]))
    for part in ("35", "dinput of a strided one", "4.5 x forward", "3 x forward", "ABOVE"):
        assert part in text
    side = {"call": {"min_ms": 20.0, "median_ms": 21.0}}
    step = {"name": "cifar10", "dtype": "float32", "ours": side, "peer": side, "ratio": 1.5, "paired_ratio": 1.25}
    text = rendered(report.step_table([step]))
    for part in ("cifar10", "float32", "20", "1.5", "1.25"):
        assert part in text


# Whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_run(monkeypatch):
    """Every measurement on tiny shapes, with made-up ceilings."""
    monkeypatch.setattr(run, "chosen_shapes", lambda *_: [TINY_SHAPES[0], TINY_SHAPES[-1]])
    monkeypatch.setattr(machine, "peaks", lambda dtypes: {"flops": dict.fromkeys(dtypes, 1e9), "bytes": 1e9})
    monkeypatch.setattr(memory, "measure_in_fresh_process", lambda *_, **__: 12345)


def test_result_file(tiny_run, tmp_path, capsys):
    path = tmp_path / "new" / "cpu.json"
    arguments = ["--suite", "dense,knn", "--dtypes", "float32", "--passes", "forward,dweight", "--rounds", "2"]
    assert run.main([*arguments, "--budget", "0", "--resident", "float32", "--out", str(path)]) == 0
    results = json.loads(path.read_text())
    assert results["schema"] == run.SCHEMA
    assert {"date", "modules", "commit", "load", "size", "settings", "peaks", "summary"} <= set(results)
    assert results["complete"]
    assert results["versions"]["jax"] == jax.__version__
    assert {"jaxlib", "jax_knnconv", "numpy", "python"} <= set(results["versions"])
    assert {"platform", "kind", "cpu", "cores"} <= set(results["device"])
    assert [(entry["name"], entry["pass"]) for entry in results["comparisons"]] == [
        (shape.name, pass_name) for shape in (TINY_SHAPES[0], TINY_SHAPES[-1]) for pass_name in ("forward", "dweight")
    ]
    for entry in results["comparisons"]:
        assert entry["rounds"] == 2
        assert entry["agrees"]
        assert entry["ratio"] > 0
        assert entry["floor_ms"] > 0
        assert entry["ours"]["implementation"] in ("compiled", "xla")
        for side in compare.SIDES:
            assert 0 < entry[side]["call"]["min_ms"] <= entry[side]["call"]["median_ms"]
            assert entry[side]["resident_bytes"] == 12345
            assert entry[side]["temporary_bytes"] >= 0
    assert results["summary"]["comparisons"] == 4
    shown = capsys.readouterr().out
    assert TINY_SHAPES[0].name in shown
    assert "geometric mean" in shown


def test_interrupted_run_keeps_what_was_done(tiny_run, monkeypatch, tmp_path):
    done = []
    whole = compare.compare

    def interrupted(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(whole(*arguments))
        return done[0]

    monkeypatch.setattr(compare, "compare", interrupted)
    path = tmp_path / "cpu.json"
    arguments = ["--suite", "knn", "--dtypes", "float32", "--passes", "forward", "--budget", "0"]
    assert run.main([*arguments, "--out", str(path)]) == 0
    results = json.loads(path.read_text())
    assert not results["complete"]
    assert [entry["name"] for entry in results["comparisons"]] == [TINY_SHAPES[0].name]
    assert results["comparisons"][0]["floor_ms"] > 0


def test_disagreement_makes_the_run_fail(tiny_run, monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "TOLERANCE", {"float32": -1.0})
    arguments = ["--suite", "knn", "--dtypes", "float32", "--passes", "forward", "--budget", "0", "--resident", "none"]
    assert run.main([*arguments, "--out", str(tmp_path / "cpu.json")]) == 1


def test_options():
    options = run.parse(["--suite", "dense,cases", "--dtypes", "float16", "--quick"])
    assert (options.suite, options.dtypes, options.passes) == (["dense", "cases"], ["float16"], list(shapes.PASSES))
    with pytest.raises(SystemExit):
        run.parse(["--suite", "sparse"])


def test_chosen_shapes():
    everything = run.chosen_shapes(run.SUITES, "cpu", False, "")
    assert everything == [*shapes.dense_shapes("cpu"), *shapes.knn_shapes("cpu")]
    assert run.chosen_shapes(["knn"], "cpu", False, "K=121") == [shapes.Knn(8, 3, 96, 4085, 964, 121)]
    assert 4 < len(run.chosen_shapes(run.SUITES, "cpu", True, "")) < len(everything) / 2


def test_result_path_names_the_device():
    cpu = {"platform": "cpu", "kind": "cpu", "cpu": "AMD EPYC (TM) 9", "cores": 2}
    assert machine.result_path(cpu).name == "amd-epyc-tm-9-2-cores.json"
    gpu = {**cpu, "platform": "gpu", "kind": "NVIDIA H200"}
    assert machine.result_path(gpu).name == "nvidia-h200.json"
    assert machine.result_path(gpu, "KNN breakdown").name == "nvidia-h200-knn-breakdown.json"


# Checks of the cases -----------------------------------------------------------------------------------------------


def test_checks_of_small_cases(monkeypatch):
    monkeypatch.setattr(field_cases, "_CLOUD", shapes.Knn(1, 4, 4, 50, 50, 3))
    monkeypatch.setattr(field_cases, "hub_shapes", lambda size: [field_cases.Hubs(shapes.Knn(1, 8, 1, 10, 50, 1), 10)])
    monkeypatch.setattr(field_cases, "_ODD_CHANNELS", (3,))
    monkeypatch.setattr(field_cases, "_ODD_BESIDE", 8)
    monkeypatch.setattr(memory, "measure_in_fresh_process", lambda *_, **__: 30)
    found = [
        *field_cases.cloud_memory(SHORT, resident=True),
        *field_cases.hub_rows(["float32", "bfloat16"], SHORT),
        *field_cases.odd_channels(SHORT, few=False),
    ]
    assert [check["case"] for check in found] == [1] * 6 + [3] * 5 + [19] * 2
    for check in found:
        assert check["ok"] == (check["value"] <= check["limit"])
        assert check["what"]
    held = [check for check in found if "memory taken" in check["what"]]
    assert [check["value"] for check in held] == [30 / (50 * 3 * 4 * 2)] * 3


def test_figure_above_its_limit_is_measured_on(monkeypatch):
    samples = {"slow": iter([9.0, 9.0, 4.0, 9.0]), "fast": iter([2.0, 1.0, 3.0, 2.0])}
    order = iter(samples)
    monkeypatch.setattr(harness, "best_sampler", lambda *_, **__: samples[next(order)].__next__)
    monkeypatch.setattr(field_cases, "_ATTEMPTS", 2)
    # 9 / 1 after two rounds, 4 / 1 after four: still above, but the attempts are used up.
    assert field_cases._relative_time((None, ()), (None, ()), 3, SHORT._replace(budget_s=100)) == 4


def test_times_that_are_noise_have_no_ratio(monkeypatch):
    samples = {"slow": iter([1.0, 1.0, 3.0, 3.0, 3.0, 3.0]), "fast": iter([-2.0, -2.0, 2.0, 2.0, 2.0, 2.0])}
    order = iter(samples)
    monkeypatch.setattr(harness, "best_sampler", lambda *_, **__: samples[next(order)].__next__)
    monkeypatch.setattr(machine, "size", lambda: "gpu")  # medians: of two samples 1 / -2, of six 3 / 2
    assert field_cases._relative_time((None, ()), (None, ()), 3, SHORT._replace(budget_s=100)) == 1.5


@pytest.mark.parametrize(("sources", "neighbours"), [(10, 1), (40, 1), (40, 3)])
def test_hubs_have_a_tap_of_each_row(sources, neighbours):
    hubs = field_cases.Hubs(shapes.Knn(1, 2, 1, sources, 40, neighbours), 4)
    with_hubs, without = hubs.tables()
    assert hubs.name.endswith("4 hubs of 10 taps")
    assert (with_hubs.num_inputs, without.num_inputs) == (sources, 40)
    indices, uniform = np.asarray(with_hubs.indices), np.asarray(without.indices)
    rows = np.arange(40)
    np.testing.assert_array_equal(indices[rows, rows % neighbours], rows % 4)
    others = np.arange(neighbours) != rows[:, None] % neighbours
    np.testing.assert_array_equal(indices[others], uniform[others] % sources)
    counts = np.bincount(indices.ravel(), minlength=sources)
    for transposed in (False, True):
        function, sets = field_cases._table_dinput(hubs.shape, with_hubs, "float32", "auto", transposed=transposed)
        for i, operands in enumerate(sets, 1):
            dx = np.asarray(function(*operands))
            assert dx.shape == ((1, 2, sources) if transposed else (1, sources, 2))
            np.testing.assert_array_equal(dx[0, 0] if transposed else dx[0, :, 0], i * counts)


def test_hub_rows_are_picked_by_name(monkeypatch):
    shape = shapes.Knn(1, 8, 1, 40, 40, 1)
    monkeypatch.setattr(field_cases, "hub_shapes", lambda size: [field_cases.Hubs(shape, count) for count in (4, 5)])
    found = list(field_cases.hub_rows(["bfloat16"], SHORT, "5 hubs"))
    assert [check["what"] for check in found] == [f"dinput bfloat16 {shape.name}, 5 hubs of 8 taps"] * 3
    assert [(check["limit"], check["unit"]) for check in found] == [
        (3, "x uniform"),
        (3, "x uniform, x transposed"),
        (1.2, "x float32"),
    ]


# The training step -------------------------------------------------------------------------------------------------


def test_training_step(monkeypatch):
    for name in ("flax", "optax"):
        pytest.importorskip(name, reason="the benchmarks extra is not installed")
    if not (ROOT / "examples" / "cifar10_model.py").exists():
        pytest.skip("this checkout has no examples")
    monkeypatch.setattr(cifar10_step, "_BATCH", {"cpu": 16, "gpu": 16})
    (entry,) = cifar10_step.run(["float32"], SHORT, quick=True)
    assert entry["name"] == "cifar10 batch 4"
    assert entry["rounds"] == 2
    assert entry["ratio"] > 0
    assert entry["agrees"]
    # Ten classes, weights that know nothing: about log(10).
    assert entry["ours"]["first_loss"] == pytest.approx(entry["peer"]["first_loss"], rel=1e-4)
    assert 1 < entry["ours"]["first_loss"] < 6
    assert "cifar10 batch 4" in rendered(report.step_table([entry]))
