"""Timing: samplers that take one sample each, and rounds in which they take turns.

On a CPU a call's wall time is its time. On a GPU three times tell more: of a call with its result waited for; of the
host alone, until the call returns and the device still works; of the device alone, from one executable that makes a
call on each of many input sets, so that the host has nothing to do in between.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

Sampler = Callable[[], float]
Clock = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)

_MOST_CALLS = 1000


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


def _timed(call: Callable[[], Any], calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        jax.block_until_ready(call())
    return (clock() - start) / calls


def wall_sampler(
    function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *, sample_s: float, clock: Clock = time.perf_counter
) -> Sampler:
    """Samples of seconds a call, each result waited for. Warms up here, and finds how many calls are a sample."""
    call = _Rotating(function, sets)
    jax.block_until_ready(call())
    calls = calls_per_sample(_timed(call, 1, clock), sample_s)
    return lambda: _timed(call, calls, clock)


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


def device_sampler(
    function: Callable[..., Any],
    sets: Sequence[tuple[Any, ...]],
    *,
    sample_s: float,
    clock: Clock = time.perf_counter,
) -> Sampler:
    """Samples of seconds a call within one executable of as many calls as there are input sets."""
    compiled = jax.jit(together(function)).lower(*sets).compile()
    whole = wall_sampler(compiled, [tuple(sets)], sample_s=sample_s, clock=clock)
    return lambda: whole() / len(sets)


def best_sampler(function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *, sample_s: float) -> Sampler:
    """The device's own time where it works apart from the host, else the wall time of a compiled call."""
    if jax.default_backend() == "cpu":
        return wall_sampler(jax.jit(function).lower(*sets[0]).compile(), sets, sample_s=sample_s)
    return device_sampler(function, sets, sample_s=sample_s)
