"""One comparison: a pass of a shape in a dtype, ours against the peer, as a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import harness, memory, operands, peers, shapes

# How far results may lie apart, relative to the largest: peers round 16-bit sums more than once.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
_TARGETS = "jax_knnconv_"
SIDES = ("ours", "peer")


class Settings(NamedTuple):
    """How a comparison is timed."""

    rounds: int = 25
    budget_s: float = 1.0  # for the rounds of one comparison
    sample_s: float = 0.01  # calls shorter than that share a sample
    implementation: str = "auto"


def compile_for(function: Any, arguments: Sequence[Any], options: dict[str, Any] | None = None) -> Any:
    """Compile for these arguments, with options of XLA's."""
    return jax.jit(function).lower(*arguments).compile(compiler_options=options)


def implementation_of(compiled: Any) -> str:
    """What runs in a compiled program of ours: "compiled" handlers or "xla"."""
    return "compiled" if _TARGETS in compiled.as_text() else "xla"


def difference(ours: Any, peer: Any) -> float:
    """The largest distance of two results, relative to the largest value; infinite where one is not finite."""
    ours, peer = (np.asarray(value, np.float32) for value in (ours, peer))
    if not np.isfinite(ours).all() or not np.isfinite(peer).all():
        return float("inf")
    scale = float(np.abs(peer).max(initial=0.0))
    return float(np.abs(ours - peer).max(initial=0.0)) / scale if scale else 0.0


def _samplers(function: Any, compiled: Any, sets: Any, settings: Settings) -> dict[str, Any]:
    """Samplers of one side, by what they time."""
    samplers: dict[str, Any] = {"call": harness.WallSampler(compiled, sets, sample_s=settings.sample_s)}
    if jax.default_backend() != "cpu":
        samplers["host"] = harness.host_sampler(compiled, sets)
        samplers["device"] = harness.device_sampler(function, sets, sample_s=settings.sample_s)
    return samplers


def compare(shape: shapes.Shape, pass_name: str, made: operands.Operands, settings: Settings) -> dict[str, Any]:
    """Time ours and the peer in turns, compare their results and the temporary memory that XLA plans.

    Args:
      shape: what is convolved.
      pass_name: "forward", "dinput" or "dweight".
      made: operands of that shape.
      settings: rounds and budget.

    Returns:
      One entry of "comparisons" in the result file.
    """
    dtype, itemsize = made.sets[0][0].dtype.name, made.sets[0][0].dtype.itemsize
    forwards = {"ours": peers.ours(shape, settings.implementation), "peer": peers.peer(shape)}
    functions = {side: peers.one_pass(forward, pass_name) for side, forward in forwards.items()}
    sets = {side: [(*operand_set, getattr(made, side)) for operand_set in made.sets] for side in SIDES}
    compiled = {side: compile_for(functions[side], sets[side][0]) for side in SIDES}
    apart = difference(*(compiled[side](*sets[side][0]) for side in SIDES))

    by_side = {side: _samplers(functions[side], compiled[side], sets[side], settings) for side in SIDES}
    kinds = list(by_side["ours"])
    samples = harness.interleave(
        {(side, kind): by_side[side][kind] for kind in kinds for side in SIDES},
        rounds=settings.rounds,
        budget_s=settings.budget_s,
    )
    timed = "device" if "device" in kinds else "call"
    sides = harness.Sides(*(samples[side, timed] for side in SIDES))

    def record(side: str) -> dict[str, Any]:
        return {
            **{kind: harness.milliseconds(samples[side, kind]) for kind in kinds},
            "cpu": harness.milliseconds(by_side[side]["call"].cpu_samples),
            "temporary_bytes": memory.temporary_bytes(compiled[side]),
            "resident_bytes": None,
        }

    return {
        "name": shape.name,
        "shape": shapes.to_json(shape),
        "pass": pass_name,
        "dtype": dtype,
        "timed": timed,
        "rounds": len(sides.ours),
        "ours": {"implementation": implementation_of(compiled["ours"]), **record("ours")},
        "peer": record("peer"),
        "ratio": sides.ratio,
        "paired_ratio": sides.paired_ratio,
        "cpu_ratio": min(by_side["peer"]["call"].cpu_samples) / min(by_side["ours"]["call"].cpu_samples),
        "moved_bytes": shapes.moved_bytes(shape, itemsize),
        "operations": shapes.operations(shape),
        "gflops": shapes.operations(shape) / min(sides.ours) / 1e9,
        "gathered_bytes": shapes.gathered_bytes(shape, itemsize),
        "difference": apart,
        "agrees": apart <= TOLERANCE[dtype],
    }
