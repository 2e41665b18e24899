"""The benchmarks' instruments: timing with clocks that the tests move, memory of known allocations, ceilings."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_cases import TINY_SHAPES, Ticks

from benchmarks import harness, machine, memory, shapes

# The harness measures whatever runs, with compiled kernels or without.
pytestmark = pytest.mark.filterwarnings("ignore::jax_knnconv.FallbackWarning")


# Timing ------------------------------------------------------------------------------------------------------------


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
    clock, cpu_clock, seen = Ticks(), Ticks(), []

    def function(value):
        seen.append(value)
        clock.now += 0.25
        cpu_clock.now += 0.125
        return value

    sampler = harness.WallSampler(function, [(0,), (1,), (2,)], sample_s=1.0, clock=clock, cpu_clock=cpu_clock)
    assert seen == [0, 1]  # the warm-up, and the call that tells how many calls are a sample
    assert sampler() == 0.25
    assert seen == [0, 1, 2, 0, 1, 2]
    assert sampler.cpu_samples == [0.125]


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


def test_queued_sampler_waits_for_the_last_run_alone():
    clock, waited = Ticks(), []

    class Pending:
        def block_until_ready(self):
            waited.append(clock.now)

    def together(*sets):
        clock.now += len(sets)
        return Pending()

    sampler = harness.queued_sampler(together, [(), ()], sample_s=8, clock=clock)
    waited.clear()
    start = clock.now
    assert sampler() == 1
    assert waited == [start + 8]  # four runs of two calls


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

    memory.return_freed_memory()  # of tests before this one, which would be taken again without growth
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
