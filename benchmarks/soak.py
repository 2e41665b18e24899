"""A soak: many steps with changing shapes. Memory may not grow, and no result may differ from its first value.

    python -m benchmarks.soak [--steps 5000] [--out FILE]

Each job is a value and all its gradients on operands of its own. Jobs come in random order; some run eagerly, some
compiled, some as a program compiled anew, as when shapes keep changing. Memory is the process's resident memory and,
on a GPU, the device's memory in use.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_knnconv as jkc
from benchmarks import machine, memory

# The part of a run after which caches and pools have what they keep.
_WARM_UP = 0.3
_MOST_GROWTH = 0.01


class Job(NamedTuple):
    """One shape: a function of its operands, eager and compiled."""

    name: str
    function: Callable[..., Any]
    compiled: Callable[..., Any]
    operands: tuple[Any, ...]


class Report(NamedTuple):
    """What a soak came to; bytes after the warm-up and at the end, device None on a CPU."""

    steps: int
    jobs: int
    differing: tuple[str, ...]
    resident: tuple[int, int]
    device: tuple[int, int] | None

    @property
    def growth(self) -> float:
        """The larger of both memories' growth, as a part of what was held after the warm-up."""
        pairs = [self.resident] if self.device is None else [self.resident, self.device]
        return max((end - start) / max(start, 1) for start, end in pairs)

    @property
    def ok(self) -> bool:
        """Whether nothing differed and memory grew by less than 1 %."""
        return not self.differing and self.growth < _MOST_GROWTH


def _gradients(forward: Callable[..., jax.Array]) -> Callable[..., Any]:
    def loss(*operands: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(forward(*operands).astype(jnp.float32)))

    return jax.value_and_grad(loss, (0, 1, 2))


def jobs(count: int = 24) -> list[Job]:
    """Random shapes of both operations, in every dtype; every third table has slots of its own."""
    random = np.random.default_rng(0)
    made = []

    def normal(*shape: int, dtype: str) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape), dtype)

    for number in range(count):
        dtype = ("bfloat16", "float16", "float32")[number % 3]
        batch, channels, outputs = (int(v) for v in random.integers(1, (5, 48, 48)))
        bias = normal(outputs, dtype="float32")
        if number % 2:
            size, taps = (int(v) for v in random.integers(4, (200, 12)))
            slots = random.integers(0, 5, (size, taps)) if number % 3 == 0 else None
            table = jkc.NeighborTable(
                random.integers(-1, size, (size, taps)), slots, num_inputs=size, num_slots=None if slots is None else 5
            )
            x = normal(batch, size, channels, dtype=dtype)
            weight = normal(table.num_slots, channels, outputs, dtype=dtype)
            forward = lambda x, w, b, table=table: jkc.knn_conv(x, w, table, b)  # noqa: E731
        else:
            height, width = (int(v) for v in random.integers(3, 20, 2))
            x = normal(batch, height, width, channels, dtype=dtype)
            weight = normal(3, 3, channels, outputs, dtype=dtype)
            forward = lambda x, w, b, stride=1 + number % 4 // 2: jkc.conv2d(x, w, b, stride=stride)  # noqa: E731
        function = _gradients(forward)
        made.append(Job(f"{number}: {x.shape} {dtype}", function, jax.jit(function), (x, weight, bias)))
    return made


def _digest(values: Any) -> bytes:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(values):
        digest.update(np.asarray(leaf).tobytes())
    return digest.digest()


def _held() -> tuple[int, int | None]:
    """Bytes of resident memory, and of the device's in use."""
    gc.collect()
    memory.return_freed_memory()
    statistics = jax.devices()[0].memory_stats()
    return memory.resident_bytes(), statistics["bytes_in_use"] if statistics else None


def soak(steps: int, count: int = 24, anew: int = 25) -> Report:
    """Run `steps` steps over `count` jobs; one in `anew` compiles its program anew, and XLA lets go of the old one."""
    everything = jobs(count)
    first: dict[str, bytes] = {}
    differing: dict[str, None] = {}
    random = np.random.default_rng(1)
    start = None
    for step in range(steps):
        job = everything[step % count if step < count else int(random.integers(count))]
        if step % anew == anew - 1:
            call = jax.jit(lambda *operands, job=job: job.function(*operands))
        else:
            call = job.function if step % 3 == 0 else job.compiled
        # What runs one operation at a time may round otherwise than a program that XLA fuses.
        name = f"{job.name}, {'eager' if call is job.function else 'compiled'}"
        digest = _digest(call(*job.operands))
        if first.setdefault(name, digest) != digest:
            differing[name] = None
        if start is None and step >= _WARM_UP * steps:
            start = _held()
    end = _held()
    assert start is not None
    device = None if start[1] is None or end[1] is None else (start[1], end[1])
    return Report(steps, count, tuple(differing), (start[0], end[0]), device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 if something differed or memory grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--anew", type=int, default=25, help="one step in so many compiles its program anew")
    parser.add_argument("--out", type=pathlib.Path, help="result file, JSON")
    options = parser.parse_args(arguments)
    for name in ("steps", "anew"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: got {getattr(options, name)}, expected at least 1")
    report = soak(options.steps, anew=options.anew)
    print(
        f"{report.steps} steps over {report.jobs} shapes on {jax.devices()[0].device_kind}: "
        f"memory grew by {report.growth:.2%} (resident {report.resident}, device {report.device}); "
        f"{len(report.differing)} results differ: {report.differing or 'none'}"
    )
    if options.out is not None:
        options.out.write_text(json.dumps({**machine.describe(), "soak": report._asdict()}, indent=1) + "\n")
    return int(not report.ok)


if __name__ == "__main__":
    sys.exit(main())
