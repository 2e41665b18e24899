"""Timing: samplers that take one sample each, and rounds in which they take turns.

On a CPU a call's wall time is its time. On a GPU four times tell more: of a call with its result waited for; of the
host alone, until the call returns and the device still works; in a loop, of one executable that makes a call on each of
many input sets and is started again and again; of the device alone, from the same executable, several runs of which are
queued while the device does other work (`head_start.py`), so that it never waits for the host. XLA records such an
executable into CUDA graphs, as far as its kernels can be recorded, and replays them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from benchmarks import head_start

Sampler = Callable[[], float]
Clock = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)

_MOST_CALLS = 1000
_MOST_QUEUED = 18  # runs; JAX makes the host wait when some dozens are in flight
_LEAST_LEAD_S = 1e-4
_LONGEST_LEAD_S = 0.03  # for one run, by which a host has queued it if it can: too many launches make it wait


class Sides(NamedTuple):
    """Seconds a call of both sides, one entry a round; entry i of each was taken in the same round."""

    ours: Sequence[float]
    peer: Sequence[float]

    @property
    def ratio(self) -> float:
        """The peer's best time over ours: above 1, ours is faster. The least disturbed by other load."""
        return min(self.peer) / min(self.ours)

    @property
    def paired_ratio(self) -> float:
        """Median over the rounds of the peer's time over ours."""
        return statistics.median(peer / ours for ours, peer in zip(self.ours, self.peer, strict=True))


def milliseconds(samples: Sequence[float]) -> dict[str, float]:
    """The least and the median of samples in seconds."""
    return {"min_ms": 1e3 * min(samples), "median_ms": 1e3 * statistics.median(samples)}


def interleave(
    samplers: Mapping[Name, Sampler],
    *,
    rounds: int,
    budget_s: float = math.inf,
    least_rounds: int = 3,
    clock: Clock = time.perf_counter,
) -> dict[Name, list[float]]:
    """Take samples A B A B ...: whatever else the machine does meets all of them alike.

    Args:
      samplers: by name; each returns one sample.
      rounds: samples of each.
      budget_s: no further round begins after that many seconds, unless fewer than `least_rounds` are done.
      least_rounds: see above.
      clock: seconds.

    Returns:
      The samples of each, equally many.
    """
    samples: dict[Name, list[float]] = {name: [] for name in samplers}
    start = clock()
    for done in range(rounds):
        if done >= least_rounds and clock() - start > budget_s:
            break
        for name, sampler in samplers.items():
            samples[name].append(sampler())
    return samples


def calls_per_sample(seconds: float, sample_s: float) -> int:
    """How many calls of so many seconds fill a sample."""
    return max(1, min(_MOST_CALLS, math.ceil(sample_s / max(seconds, 1e-9))))


class _Rotating:
    """Calls a function on one input set after the other."""

    def __init__(self, function: Callable[..., Any], sets: Sequence[tuple[Any, ...]]):
        self._function, self._sets, self._next = function, sets, 0

    def __call__(self) -> Any:
        operands = self._sets[self._next % len(self._sets)]
        self._next += 1
        return self._function(*operands)


class WallSampler:
    """Samples of seconds a call, each result waited for; how many calls are a sample, the warm-up tells.

    Args:
      function: what is called.
      sets: its operands, taken in turns.
      sample_s: calls shorter than that share a sample.
      clock: wall seconds.
      cpu_clock: seconds that processors worked for this process, on all its threads.

    Attributes:
      seconds: of the call that told how many are a sample.
      cpu_samples: processor seconds a call, of each sample so far. Time that other programs take is not in them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        sets: Sequence[tuple[Any, ...]],
        *,
        sample_s: float,
        clock: Clock = time.perf_counter,
        cpu_clock: Clock = time.process_time,
    ):
        self._call, self._clock, self._cpu_clock = _Rotating(function, sets), clock, cpu_clock
        self.cpu_samples: list[float] = []
        jax.block_until_ready(self._call())
        self._calls = 1
        self.seconds = self()
        self._calls = calls_per_sample(self.seconds, sample_s)
        self.cpu_samples.clear()

    def __call__(self) -> float:
        """Take one sample."""
        cpu, start = self._cpu_clock(), self._clock()
        for _ in range(self._calls):
            jax.block_until_ready(self._call())
        seconds = (self._clock() - start) / self._calls
        self.cpu_samples.append((self._cpu_clock() - cpu) / self._calls)
        return seconds


def host_sampler(
    function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *, clock: Clock = time.perf_counter
) -> Sampler:
    """Samples of the seconds until an asynchronous call returns; the device is idle when it begins."""
    call = _Rotating(function, sets)
    jax.block_until_ready(call())

    def sample() -> float:
        start = clock()
        result = call()
        seconds = clock() - start
        jax.block_until_ready(result)
        return seconds

    return sample


def together(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """One function that makes a call on each of its input sets.

    All results are returned, so that none can be left out, and all inputs differ, so that no two can be merged. (A
    chain by `lax.optimization_barrier` would need neither, but XLA drops barriers and then the calls behind them.)
    """
    return lambda *sets: [function(*operands) for operands in sets]


def queued_sampler(
    together: Callable[..., Any],
    sets: Sequence[tuple[Any, ...]],
    *,
    sample_s: float,
    clock: Clock = time.perf_counter,
    ahead: Callable[[float], Any] | None = None,
    differences: bool = False,
) -> Sampler:
    """Samples of seconds a call of a compiled `together` function: its runs queue, and only the last is waited for.

    Args:
      together: makes a call on each of `sets`.
      sets: its operands.
      sample_s: that many seconds of runs are a sample, one run at least.
      clock: seconds.
      ahead: starts work of so many seconds and returns what to wait for. Runs are queued while the device does it, so
        that their time is the device's even where the host takes longer to start them. Samples are differences then.
      differences: a sample is what three times as many runs take longer, so that neither the start of the first nor how
        soon the host wakes up counts. Samples scatter to both sides of the truth: take their median.
    """

    def queue(times: int) -> Any:
        result = None
        for _ in range(times):
            # Its memory is the next run's: a recorded graph is not recorded anew for other addresses.
            result = None
            result = together(*sets)
        return result

    def run(times: int) -> float:
        start = clock()
        jax.block_until_ready(queue(times))
        return clock() - start

    def run_behind(times: int) -> float:
        nonlocal lead_s
        while ahead is not None and lead_s < _LONGEST_LEAD_S:
            busy = ahead(times * lead_s)
            result = queue(times)
            if not busy.is_ready():
                jax.block_until_ready(busy)
                start = clock()
                jax.block_until_ready(result)
                return clock() - start
            jax.block_until_ready(result)
            lead_s *= 2
        return run(times)

    run(1)
    if ahead is None and not differences:
        times = calls_per_sample(run(1), sample_s)
        return lambda: run(times) / (times * len(sets))
    times = min(calls_per_sample(run(1), sample_s / 2), _MOST_QUEUED // 3)
    start = clock()
    result = queue(times)
    lead_s = max(_LEAST_LEAD_S, 1.5 * (clock() - start) / times)
    jax.block_until_ready(result)
    return lambda: (run_behind(3 * times) - run_behind(times)) / (2 * times * len(sets))


def device_sampler(
    function: Callable[..., Any],
    sets: Sequence[tuple[Any, ...]],
    *,
    sample_s: float,
    clock: Clock = time.perf_counter,
) -> Sampler:
    """Samples of seconds a call within one executable of as many calls as there are input sets."""
    compiled = jax.jit(together(function)).lower(*sets).compile()
    return queued_sampler(compiled, sets, sample_s=sample_s, clock=clock, ahead=head_start.for_device())


def best_sampler(function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *, sample_s: float) -> Sampler:
    """The device's own time where it works apart from the host, else the wall time of a compiled call."""
    if jax.default_backend() == "cpu":
        return WallSampler(jax.jit(function).lower(*sets[0]).compile(), sets, sample_s=sample_s)
    return device_sampler(function, sets, sample_s=sample_s)
