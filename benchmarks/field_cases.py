"""Limits of time and memory that users of other libraries met: a figure and its limit each.

Numbers are those of the cases' list: 1 memory of a large point cloud, 3 hub rows, 19 odd channel counts, 35 strided
gradients and large kernels.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import Progress

import jax_knnconv as jkc
from benchmarks import compare, harness, machine, memory, operands, peers
from benchmarks.shapes import PASSES, Dense, Knn, Shape, gathered_bytes

Check = dict[str, Any]
_Work = tuple[Callable[..., Any], Sequence[Any]]  # a function and its input sets
_CLOUD = Knn(4, 64, 64, 100_000, 100_000, 27, space=3)
_ODD_CHANNELS = (1, 2, 3, 5, 7, 9, 17, 33, 63, 65)
_ODD_BESIDE = 64  # the other channel count
_ODD_LIMIT, _HUB_LIMIT, _NARROW_LIMIT, _GRADIENT_LIMIT = 2, 3, 1.2, 3
_ATTEMPTS = 3
_SETS = {"cpu": 2, "gpu": 8}  # of operands: on a GPU, as many calls of one executable


class Hubs(NamedTuple):
    """Neighbours drawn uniformly, except that one tap of each row is on one of the first `count` sources, the hubs."""

    shape: Knn
    count: int

    @property
    def name(self) -> str:
        """The shape's, and the hubs with their taps."""
        return f"{self.shape.name}, {self.count} hubs of {self.shape.rows // self.count} taps"

    def tables(self) -> tuple[jkc.NeighborTable, jkc.NeighborTable]:
        """With hubs, and as many taps on as many sources as there are rows, without."""
        shape = self.shape
        uniform = np.random.default_rng(0).integers(0, shape.rows, (shape.rows, shape.neighbours), np.int32)
        indices, rows = uniform % shape.sources, np.arange(shape.rows, dtype=np.int32)
        indices[rows, rows % shape.neighbours] = rows % self.count
        return (
            jkc.NeighborTable(indices, num_inputs=shape.sources),
            jkc.NeighborTable(uniform, num_inputs=shape.rows),
        )


def _check(case: int, what: str, value: float, limit: float, unit: str) -> Check:
    return {"case": case, "what": what, "value": value, "limit": limit, "unit": unit, "ok": value <= limit}


def _relative_time(slow: _Work, fast: _Work, limit: float, settings: compare.Settings) -> float:
    """Best time of the first over that of the second, taken in turns; on a GPU, whose samples are differences, medians.

    Above its limit it is measured on, with all samples kept: short measurements on a busy machine miss the best time.
    """
    usual = min if machine.size() == "cpu" else statistics.median
    samplers = {
        name: harness.best_sampler(function, sets, sample_s=settings.sample_s)
        for name, (function, sets) in (("slow", slow), ("fast", fast))
    }
    taken: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(_ATTEMPTS):
        samples = harness.interleave(samplers, rounds=settings.rounds, budget_s=settings.budget_s)
        for name, seconds in samples.items():
            taken[name] += seconds
        seconds_of = {name: usual(all_samples) for name, all_samples in taken.items()}
        # Differences that are not positive are noise.
        ratio = seconds_of["slow"] / seconds_of["fast"] if min(seconds_of.values()) > 0 else math.inf
        if ratio <= limit:
            break
    return ratio


def _pass_of(shape: Shape, pass_name: str, dtype: str, implementation: str) -> _Work:
    made = operands.make(shape, dtype, count=_SETS[machine.size()])
    function = peers.one_pass(peers.ours(shape, implementation), pass_name)
    return function, [(*entry, made.ours) for entry in made.sets]


def cloud_memory(settings: compare.Settings, *, resident: bool, dtype: str = "bfloat16") -> Iterator[Check]:
    """Case 1: temporary memory of each pass over a large point cloud, against the gathered matrix."""
    whole = gathered_bytes(_CLOUD, jnp.dtype(dtype).itemsize)
    random = np.random.default_rng(0).integers(0, _CLOUD.sources, (_CLOUD.rows, _CLOUD.neighbours), np.int32)
    table = jkc.NeighborTable(random, num_inputs=_CLOUD.sources)
    x = jax.ShapeDtypeStruct((_CLOUD.batch, _CLOUD.sources, _CLOUD.channels), dtype)
    weight = jax.ShapeDtypeStruct((_CLOUD.neighbours, _CLOUD.channels, _CLOUD.outputs), dtype)
    g = jax.ShapeDtypeStruct((_CLOUD.batch, _CLOUD.rows, _CLOUD.outputs), dtype)
    for name in PASSES:
        function = peers.one_pass(peers.ours(_CLOUD, settings.implementation), name)
        planned = memory.temporary_bytes(compare.compile_for(function, (x, weight, g, table)))
        if planned is not None:
            yield _check(1, f"{_CLOUD.name} {dtype} {name}: planned memory", planned / whole, 0.1, "of gathered")
        if resident:
            held = memory.measure_in_fresh_process(_CLOUD, name, dtype, "ours", implementation=settings.implementation)
            yield _check(1, f"{_CLOUD.name} {dtype} {name}: memory taken", held / whole, 0.1, "of gathered")


def hub_shapes(size: str) -> list[Hubs]:
    """Tables with hubs in a size, "cpu" or "gpu": shared points, a point cloud, and a large batch."""
    points, batch = (20_000, 8) if size == "cpu" else (100_000, 128)
    return [
        Hubs(Knn(1, 8, 1, 10, 400_000, 1), 10),
        Hubs(Knn(1, 8, 1, 400_000, 400_000, 1), 10),
        Hubs(Knn(1, 64, 64, points, points, 27, space=3), 4),
        Hubs(Knn(batch, 64, 64, 4096, 4096, 9), 1),
    ]


def _table_dinput(shape: Knn, table: jkc.NeighborTable, dtype: str, implementation: str, *, transposed: bool) -> _Work:
    """dx of a table; of x transposed where x arrives so."""
    weight = jnp.ones((shape.neighbours, shape.channels, shape.outputs), dtype)
    values = range(1, _SETS[machine.size()] + 1)
    sets = [(jnp.full((shape.batch, shape.rows, shape.outputs), value, dtype), weight, table) for value in values]

    def dinput(g: jax.Array, weight: jax.Array, table: jkc.NeighborTable) -> jax.Array:
        dx = jkc.knn_dinput(g, weight, table, implementation=implementation)
        return jnp.swapaxes(dx, -1, -2) if transposed else dx

    return dinput, sets


def _beside_hubs(hubs: Hubs, dtypes: Sequence[str], settings: compare.Settings) -> Iterator[Check]:
    with_hubs, without = hubs.tables()

    def work(table: jkc.NeighborTable, dtype: str, *, transposed: bool = False) -> _Work:
        return _table_dinput(hubs.shape, table, dtype, settings.implementation, transposed=transposed)

    for dtype in dtypes:
        hub = work(with_hubs, dtype)
        turned, turned_uniform = (work(table, dtype, transposed=True) for table in (with_hubs, without))
        compared = [
            ("uniform", hub, work(without, dtype), _HUB_LIMIT),
            ("uniform, x transposed", turned, turned_uniform, _HUB_LIMIT),
        ]
        if dtype != "float32":
            function, sets = work(with_hubs, "float32")
            compared.append(("float32", hub, (function, sets[:1]), _NARROW_LIMIT))  # a long call on a GPU
        for beside, slow, fast, limit in compared:
            value = _relative_time(slow, fast, limit, settings)
            yield _check(3, f"dinput {dtype} {hubs.name}", value, limit, f"x {beside}")


def hub_rows(dtypes: Sequence[str], settings: compare.Settings, match: str = "") -> Iterator[Check]:
    """Case 3: dinput over tables with hubs and without, of 16 bits and of float32, of x transposed and as it is."""
    for hubs in hub_shapes(machine.size()):
        if match in hubs.name:
            yield from _beside_hubs(hubs, dtypes, settings)


def odd_channels(settings: compare.Settings, *, few: bool, dtype: str = "bfloat16") -> Iterator[Check]:
    """Case 19: each odd channel count against the next multiple of 8; the worst pass of each."""
    batch = 16 if machine.size() == "cpu" else 256
    counts = _ODD_CHANNELS[2::4] if few else _ODD_CHANNELS
    for count in counts:
        even = -(-count // 8) * 8
        into, out_of = ((count, _ODD_BESIDE), (even, _ODD_BESIDE)), ((_ODD_BESIDE, count), (_ODD_BESIDE, even))
        for odd_pair, even_pair in (into, out_of):
            worst, where = 0.0, ""
            for name in PASSES:
                odd, padded = (
                    _pass_of(Dense(batch, 16, 16, *pair), name, dtype, settings.implementation)
                    for pair in (odd_pair, even_pair)
                )
                value = _relative_time(odd, padded, _ODD_LIMIT, settings)
                if value > worst:
                    worst, where = value, name
            what = f"conv2d {batch}x16x16 {odd_pair[0]}->{odd_pair[1]} {dtype}, worst in {where}"
            yield _check(19, what, worst, _ODD_LIMIT, f"x {even_pair[0]}->{even_pair[1]}")


def strided_gradients(dtypes: Sequence[str], settings: compare.Settings) -> Iterator[Check]:
    """Case 35: dinput of a strided convolution and dweight of large kernels against the forward; the first call."""
    batch = 4 if machine.size() == "cpu" else 128
    for dtype in dtypes:
        for shape, name in (
            (Dense(batch, 28, 28, 256, 256, stride=2), "dinput"),
            (Dense(batch, 224, 224, 3, 768, kernel=16, stride=16), "dweight"),
        ):
            gradient = _pass_of(shape, name, dtype, settings.implementation)
            start = time.perf_counter()
            function, (first, *_) = gradient
            jax.block_until_ready(compare.compile_for(function, first)(*first))
            seconds = time.perf_counter() - start
            forward = _pass_of(shape, "forward", dtype, settings.implementation)
            value = _relative_time(gradient, forward, _GRADIENT_LIMIT, settings)
            yield _check(35, f"{shape.name} {dtype} {name}", value, _GRADIENT_LIMIT, "x forward")
            yield _check(35, f"{shape.name} {dtype} {name}: first call", seconds, 5, "s")


def run(dtypes: Sequence[str], settings: compare.Settings, *, quick: bool, progress: Progress) -> list[Check]:
    """All checks, each a dict with case, what, value, limit, unit and ok."""
    task = progress.add_task("cases", total=None)
    if quick:
        dtypes = dtypes[:1]
    # A ratio of two times needs fewer rounds than a comparison that is reported.
    short = settings._replace(budget_s=settings.budget_s / 4)
    parts = (
        cloud_memory(settings, resident=not quick),
        hub_rows(dtypes, settings),
        odd_channels(short, few=quick),
        strided_gradients(dtypes, settings),
    )
    checks: list[Check] = []
    for part in parts:
        for check in part:
            checks.append(check)
            progress.update(task, description=f"case {check['case']}: {check['what']}")
    return checks
