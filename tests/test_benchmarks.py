"""The benchmark harness: its arithmetic, its measurements of memory, its files; nothing here is timed."""

import dataclasses
import io
import itertools
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: an installed jax_knnconv goes before the source folder's

pytest.importorskip("rich", reason="the benchmarks extra is not installed")

from rich.console import Console  # noqa: E402

from benchmarks import (  # noqa: E402  # noqa: E402
    cifar10_step,
    compare,
    field_cases,
    harness,
    machine,
    memory,
    operands,
    peers,
    report,
    run,
    shapes,
)

# The harness measures whatever runs, with compiled kernels or without.
pytestmark = pytest.mark.filterwarnings("ignore::jax_knnconv.FallbackWarning")

SHORT = compare.Settings(rounds=2, budget_s=0, sample_s=0)
ALL_SHAPES = [shape for size in ("cpu", "gpu") for shape in (*shapes.dense_shapes(size), *shapes.knn_shapes(size))]


def tiny(shape):
    """The same kind of shape with a few rows and channels, which NumPy can do tap by tap."""
    fewer = {"batch": min(shape.batch, 2), "channels": min(shape.channels, 4), "outputs": 5}
    if isinstance(shape, shapes.Dense):
        return dataclasses.replace(shape, height=7, width=9, **fewer)
    rows = 8 if shape.rows == shape.sources else 6
    return dataclasses.replace(shape, sources=8, rows=rows, neighbours=min(shape.neighbours, 5), **fewer)


TINY_SHAPES = sorted({tiny(shape) for shape in ALL_SHAPES}, key=lambda shape: shape.name)


# Timing ------------------------------------------------------------------------------------------------------------


class Ticks:
    """A clock that moves only when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_ratios_of_known_samples():
    sides = harness.Sides(ours=[2.0, 1.0, 4.0], peer=[4.0, 3.0, 4.0])
    assert sides.ratio == 3
    assert sides.paired_ratio == 2


def test_sides_take_turns():
    order = []

    def sampler(name):
        return lambda: order.append(name) or float(len(order))

    samples = harness.interleave({name: sampler(name) for name in "AB"}, rounds=3)
    assert order == list("ABABAB")
    assert samples == {"A": [1, 3, 5], "B": [2, 4, 6]}


@pytest.mark.parametrize(("budget_s", "least_rounds", "expected"), [(2.5, 1, 3), (0, 2, 2), (100, 1, 5)])
def test_budget_ends_a_comparison_early(budget_s, least_rounds, expected):
    clock = Ticks()

    def sampler():
        clock.now += 0.5
        return 0.5

    samples = harness.interleave(
        {"a": sampler, "b": sampler}, rounds=5, budget_s=budget_s, least_rounds=least_rounds, clock=clock
    )
    assert [len(taken) for taken in samples.values()] == [expected, expected]


def test_calls_per_sample():
    assert harness.calls_per_sample(0.5, 0.01) == 1
    assert harness.calls_per_sample(0.003, 0.01) == 4
    assert 1 < harness.calls_per_sample(0.0, 0.01) <= 1000


def test_wall_sampler_rotates_inputs_and_divides_by_calls():
    clock, seen = Ticks(), []

    def function(value):
        seen.append(value)
        clock.now += 0.25
        return value

    sampler = harness.wall_sampler(function, [(0,), (1,), (2,)], sample_s=1.0, clock=clock)
    assert seen == [0, 1]  # the warm-up, and the call that tells how many calls are a sample
    assert sampler() == 0.25
    assert seen == [0, 1, 2, 0, 1, 2]


def test_host_sampler_stops_the_clock_when_the_call_returns():
    clock = Ticks()

    class Pending:
        """A result that takes a second of waiting."""

        def block_until_ready(self):
            clock.now += 1

    def function():
        clock.now += 0.125
        return Pending()

    assert harness.host_sampler(function, [()], clock=clock)() == 0.125


def test_together_keeps_every_call():
    def product(a, b):
        return jnp.sin(a) @ b

    sets = [(jnp.full((8, 8), float(i)), jnp.eye(8)) for i in range(5)]
    compiled = jax.jit(harness.together(product)).lower(*sets).compile()
    assert compiled.as_text().count(" dot(") + compiled.as_text().count("custom-call(") == 5
    for i, result in enumerate(compiled(*sets)):
        np.testing.assert_allclose(result, np.full((8, 8), np.sin(i)), rtol=1e-5)


def test_device_sampler_divides_by_the_calls():
    clock = Ticks()

    def tick(x):
        clock.now += 1
        return x

    def function(x):
        return jax.pure_callback(tick, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    sets = [(jnp.full(3, float(i)),) for i in range(4)]
    assert harness.device_sampler(function, sets, sample_s=0, clock=clock)() == 1


# Shapes and operands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["cpu", "gpu"])
def test_names_tell_shapes_apart(size):
    table = [*shapes.dense_shapes(size), *shapes.knn_shapes(size)]
    assert len({shape.name for shape in table}) == len(table) >= 26
    assert all(shapes.from_json(json.loads(json.dumps(shapes.to_json(shape)))) == shape for shape in table)


def test_cpu_sizes_fit_a_small_machine():
    for shape in (*shapes.dense_shapes("cpu"), *shapes.knn_shapes("cpu")):
        assert shapes.gathered_bytes(shape, 4) < 2**30
        assert shapes.moved_bytes(shape, 4) * operands.set_count(shape, 4) < 2**30


@pytest.mark.parametrize(
    ("shape", "taps"),
    [
        (shapes.Dense(1, 3, 3, 1, 1), 4 * 4 + 4 * 6 + 9),  # corners, edges, centre
        (shapes.Dense(1, 4, 4, 1, 1, kernel=2, stride=2), 16),
        (shapes.Dense(1, 5, 5, 1, 1, stride=2), 49),  # 2 + 3 + 2 taps in each direction
        (shapes.Knn(1, 1, 1, 8, 6, 5), 30),
    ],
)
def test_operations_count_taps_that_read(shape, taps):
    assert shape.taps == taps
    bigger = dataclasses.replace(shape, batch=3, channels=2, outputs=7)
    assert shapes.operations(bigger) == 2 * 3 * 2 * 7 * taps


def test_bytes():
    knn = shapes.Knn(2, 3, 5, 8, 6, 4)
    assert shapes.gathered_bytes(knn, 2) == 2 * 6 * 4 * 3 * 2
    assert shapes.moved_bytes(knn, 2) == (2 * 8 * 3 + 2 * 6 * 5 + 4 * 3 * 5) * 2 + 6 * 4 * 4
    dense = shapes.Dense(2, 4, 4, 3, 5, stride=2)
    assert shapes.gathered_bytes(dense, 4) == 2 * 2 * 2 * 9 * 3 * 4
    assert shapes.moved_bytes(dense, 4) == (2 * 16 * 3 + 2 * 4 * 5 + 9 * 3 * 5) * 4


def test_neighbours_are_the_nearest_points():
    shape = shapes.Knn(1, 1, 1, 40, 30, 6, space=3)
    points = np.random.default_rng(5).random((40, 3))
    distances = np.linalg.norm(points[:30, None] - points, axis=-1)
    expected = np.argsort(distances, axis=-1)[:, :6]
    np.testing.assert_array_equal(operands.neighbour_indices(shape, seed=5), expected)


def test_operand_sets_differ():
    made = operands.make(tiny(shapes.Knn(2, 4, 4, 8, 8, 5)), "bfloat16", count=2)
    first, second = made.sets
    for a, b in zip(first, second, strict=True):
        assert a.dtype == jnp.bfloat16
        assert not np.array_equal(a, b)


# Ours and the peer -------------------------------------------------------------------------------------------------


def exact(shape, x, weight, g):
    """The three passes of a shape, and the sums of absolute products, in float64."""
    x, weight, g = (np.asarray(value, np.float64) for value in (x, weight, g))
    y, dx, dw = np.zeros(g.shape), np.zeros(x.shape), np.zeros(weight.shape)
    bounds = [np.zeros_like(value) for value in (y, dx, dw)]
    for row, source, slot in taps(shape):
        for out, a, w, cotangent in ((
            (y, dx, dw), x, weight, g), (bounds, abs(x), abs(weight), abs(g))):  # fmt: skip
            out[0][(slice(None), *row)] += a[(slice(None), *source)] @ w[slot]
            out[1][(slice(None), *source)] += cotangent[(slice(None), *row)] @ w[slot].T
            out[2][slot] += a[(slice(None), *source)].T @ cotangent[(slice(None), *row)]
    return (y, dx, dw), bounds


def taps(shape):
    """(output row, input row, slot) of every tap of a shape, one after the other."""
    if isinstance(shape, shapes.Knn):
        indices = operands.neighbour_indices(shape)
        for m, k in np.ndindex(indices.shape):
            yield (m,), (int(indices[m, k]),), (k,)
        return
    low = [
        max((count - 1) * shape.stride + shape.kernel - size, 0) // 2
        for size, count in zip(shape.rows_in, shape.rows_out, strict=True)
    ]
    for row in itertools.product(*map(range, shape.rows_out)):
        for slot in itertools.product(range(shape.kernel), repeat=2):
            source = tuple(r * shape.stride + f - pad for r, f, pad in zip(row, slot, low, strict=True))
            if all(0 <= s < size for s, size in zip(source, shape.rows_in, strict=True)):
                yield row, source, slot


@pytest.mark.parametrize("shape", TINY_SHAPES, ids=lambda shape: shape.name)
def test_every_pass_of_both_sides_is_right(shape):
    made = operands.make(shape, "float32", count=1)
    (values, bounds) = exact(shape, *made.sets[0])
    for side, forward in (("ours", peers.ours(shape)), ("peer", peers.peer(shape))):
        passes = [peers.one_pass(forward, name) for name in shapes.PASSES]
        arguments = (*made.sets[0], getattr(made, side))
        results = jax.jit(lambda *operands, passes=passes: [one(*operands) for one in passes])(*arguments)
        for name, result, value, bound in zip(shapes.PASSES, results, values, bounds, strict=True):
            error = np.abs(np.asarray(result, np.float64) - value)
            assert (error <= 2.0**-22 * bound + 1e-30).all(), (side, name, error.max())


def test_unknown_pass_is_refused():
    with pytest.raises(ValueError, match="forward, dinput or dweight, got 'backward'"):
        peers.one_pass(peers.peer(TINY_SHAPES[0]), "backward")


def test_difference():
    assert compare.difference(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5
    assert compare.difference(np.zeros(2), np.zeros(2)) == 0
    assert compare.difference(np.array([np.nan]), np.array([1.0])) == float("inf")


def test_comparison_of_a_wrong_result_does_not_agree(monkeypatch):
    shape = TINY_SHAPES[-1]
    right = peers.ours(shape)
    monkeypatch.setattr(peers, "ours", lambda *_: lambda *operands: right(*operands).at[0, 0, 0].add(1))
    entry = compare.compare(shape, "forward", operands.make(shape, "float32", count=2), SHORT)
    assert not entry["agrees"]
    assert entry["difference"] > 0.05


# Memory ------------------------------------------------------------------------------------------------------------

MEGABYTE = 2**20


@pytest.mark.parametrize("measure", [memory.resident_growth, memory._by_polling])
def test_resident_growth_of_a_known_allocation(measure):
    def allocate():
        temporary = np.ones(64 * MEGABYTE, np.uint8)
        result = np.ones(16 * MEGABYTE, np.uint8)
        result[0] += temporary[-1]
        time.sleep(0.05)  # long enough to be polled
        return result

    growth = measure(allocate)
    assert growth.result[0] == 2
    assert 60 * MEGABYTE <= growth.temporary <= 72 * MEGABYTE


def test_temporary_bytes_of_a_known_program():
    matrix = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    compiled = jax.jit(lambda a: (a @ a) @ a).lower(matrix).compile()
    assert 256 * 256 * 4 <= memory.temporary_bytes(compiled) <= 3 * 256 * 256 * 4


def test_device_growth_needs_a_device_that_counts():
    class Device:
        def __init__(self, *statistics):
            self.statistics = list(statistics)

        def memory_stats(self):
            return self.statistics.pop(0)

    counted = [{"bytes_in_use": 10, "peak_bytes_in_use": 12}, {"bytes_in_use": 34, "peak_bytes_in_use": 50}]
    assert memory.device_growth(lambda: np.zeros(16, np.uint8), Device(*counted)).temporary == 50 - 10 - 16
    assert memory.device_growth(lambda: None, Device(None)) is None


def test_fresh_process_sees_the_gathered_matrix_of_the_peer_and_none_of_ours():
    shape = shapes.Knn(4, 32, 8, 4096, 4096, 16)
    gathered = shapes.gathered_bytes(shape, 4)
    assert gathered == 32 * MEGABYTE
    assert memory.measure_in_fresh_process(shape, "forward", "float32", "peer") >= 0.9 * gathered
    assert memory.measure_in_fresh_process(shape, "forward", "float32", "ours") <= 0.3 * gathered


def test_fresh_process_that_fails_tells_why():
    with pytest.raises(RuntimeError, match="float31"):
        memory.measure_in_fresh_process(TINY_SHAPES[0], "forward", "float31", "ours")


# Ceilings ----------------------------------------------------------------------------------------------------------


def test_peaks(monkeypatch):
    monkeypatch.setattr(machine, "_MATMUL_SIDE", {"cpu": 32, "gpu": 32})
    monkeypatch.setattr(machine, "_COPY_BYTES", {"cpu": 4096, "gpu": 4096})
    monkeypatch.setattr(machine, "_SAMPLES", 1)
    peaks = machine.peaks(["bfloat16", "float32"])
    assert list(peaks["flops"]) == ["bfloat16", "float32"]
    assert peaks["flops"]["bfloat16"] >= peaks["flops"]["float32"] > 0
    assert peaks["bytes"] > 0


def test_floor_is_the_slower_of_products_and_bytes():
    lower = {"flops": {"float32": 1e9}, "bytes": 3e6}
    higher = {"flops": {"float32": 2e9}, "bytes": 1e6}
    ceilings = machine.highest(lower, higher)
    assert ceilings == {"flops": {"float32": 2e9}, "bytes": 3e6}
    assert machine.floor_ms(4_000_000, 3_000, "float32", ceilings) == 2
    assert machine.floor_ms(4_000_000, 30_000, "float32", ceilings) == 10


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
    assert report.summarise([]) == {"comparisons": 0}


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
    assert {"date", "module", "commit", "size", "settings", "peaks", "summary"} <= set(results)
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
    assert run.result_path(cpu).name == "amd-epyc-tm-9-2-cores.json"
    assert run.result_path({**cpu, "platform": "gpu", "kind": "NVIDIA H200"}).name == "nvidia-h200.json"


# Checks of the cases -----------------------------------------------------------------------------------------------


def test_checks_of_small_cases(monkeypatch):
    monkeypatch.setattr(field_cases, "_CLOUD", shapes.Knn(1, 4, 4, 50, 50, 3))
    monkeypatch.setattr(field_cases, "_HUB_ROWS", 50)
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


def test_hub_dinput_counts_its_rows():
    function, sets = field_cases._hub_dinput(np.arange(40, dtype=np.int32) % 10, 10, "float32", "auto")
    np.testing.assert_array_equal(function(*sets[0]), np.full((1, 10, 8), 4.0))
    np.testing.assert_array_equal(function(*sets[1]), np.full((1, 10, 8), 8.0))


# The training step -------------------------------------------------------------------------------------------------


@pytest.fixture
def example():
    pytest.importorskip("flax", reason="the benchmarks extra is not installed")
    pytest.importorskip("optax", reason="the benchmarks extra is not installed")
    if not (ROOT / "examples" / "cifar10_model.py").exists():
        pytest.skip("this checkout has no examples")


def test_both_training_steps_lose_alike(example):
    losses = {}
    for side, backend in cifar10_step._BACKENDS.items():
        step, state = cifar10_step.make_step(backend, "float32")
        train = cifar10_step._training(jax.jit(step), state)
        losses[side] = [float(train(*batch)) for batch in cifar10_step.batches(3, 4)]
    assert np.isfinite(losses["ours"]).all()
    np.testing.assert_allclose(losses["ours"], losses["peer"], rtol=1e-3)


def test_step_entries(example, monkeypatch):
    monkeypatch.setattr(cifar10_step, "_BATCH", {"cpu": 8, "gpu": 8})
    (entry,) = cifar10_step.run(["float32"], SHORT, quick=True)
    assert entry["name"] == "cifar10 batch 2"
    assert entry["rounds"] == 2
    assert entry["ratio"] > 0
    assert "cifar10 batch 2" in rendered(report.step_table([entry]))
