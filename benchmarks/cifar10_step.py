"""A whole training step: the CIFAR-10 network of `examples/` with our convolutions against its plain Flax twin.

Both sides are one jitted function of the same graph, optimiser and batch; only the convolution layer differs.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import ROOT, compare, harness, head_start, kernels, machine, memory

_MODEL = ROOT / "examples" / "cifar10_model.py"
_BACKENDS = {"ours": "knnconv", "peer": "flax"}
_BATCH = {"cpu": 64, "gpu": 256}
_BATCHES = 4  # different ones, taken in turns
_SCANNED_BATCHES = 4  # of one executable that times the device alone; of more, the twin's launches would fill the queue
_LOOP_STARTS = 5  # a loop is sampled so much longer than the rest, beside which its start is nothing


@functools.cache
def example() -> ModuleType:
    """The example's module; `examples/` is a folder of scripts, not a package.

    Raises:
      FileNotFoundError: this checkout has no examples.
    """
    if not _MODEL.exists():
        raise FileNotFoundError(f"the training step needs {_MODEL}, which this checkout lacks")
    spec = importlib.util.spec_from_file_location(_MODEL.stem, _MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODEL.stem] = module
    spec.loader.exec_module(module)
    return module


def make_step(backend: str, dtype: str) -> tuple[Callable[..., Any], Any]:
    """A pure (state, images, labels) -> (state, loss) and its first state."""
    from flax import nnx

    module = example()
    model = module.Cifar10CNN(backend, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    graph, first = nnx.split((model, module.make_optimizer(model)))

    def step(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        loss = module.train_step(model, optimizer, images, labels)
        return nnx.state((model, optimizer)), loss

    return step, first


def batches(count: int, batch: int) -> list[tuple[jax.Array, jax.Array]]:
    """Random images and labels: a step costs the same whatever they show."""
    random = np.random.default_rng(0)
    return [
        (
            jnp.asarray(random.standard_normal((batch, 32, 32, 3), np.float32)),
            jnp.asarray(random.integers(0, 10, batch), jnp.int32),
        )
        for _ in range(count)
    ]


def _training(compiled: Any, state: Any) -> Callable[..., jax.Array]:
    """Trains on: each call is the next step, or the next steps. Returns its loss, or their losses."""

    def train(images: jax.Array, labels: jax.Array) -> jax.Array:
        nonlocal state
        state, loss = compiled(state, images, labels)
        return loss

    return train


def _compile(step: Callable[..., Any], state: Any, images: jax.Array, labels: jax.Array) -> Any:
    return jax.jit(step, donate_argnums=0).lower(state, images, labels).compile()


class _Scanned:
    """Many steps in one executable, for the device alone."""

    def __init__(self, step: Callable[..., Any], state: Any, data: Sequence[Any]):
        def steps(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
            return lax.scan(lambda state, batch: step(state, *batch), state, (images, labels))

        self._chosen = [data[i % len(data)] for i in range(_SCANNED_BATCHES)]
        images, labels = (jnp.stack(values) for values in zip(*self._chosen, strict=True))
        train = _training(_compile(steps, state, images, labels), state)
        self._run = lambda *_: train(images, labels)

    def sampler(self, sample_s: float) -> harness.Sampler:
        """Samples of seconds a step."""
        return harness.queued_sampler(self._run, self._chosen, sample_s=sample_s, ahead=head_start.for_device())

    def kernels(self) -> dict[str, float]:
        """Milliseconds a step of its kernels, by kind."""
        jax.block_until_ready(self._run())  # records its graphs
        return kernels.split(kernels.record(self._run), _SCANNED_BATCHES)


class _Side(NamedTuple):
    samplers: dict[str, harness.Sampler]  # by what they time
    call: harness.WallSampler
    first_loss: np.ndarray
    temporary_bytes: int | None
    kernels: dict[str, float]  # milliseconds of the device, by kind


def _prepare(backend: str, dtype: str, data: Sequence[Any], sample_s: float) -> _Side:
    step, state = make_step(backend, dtype)
    compiled = _compile(step, state, *data[0])
    train = _training(compiled, jax.tree.map(jnp.copy, state))  # the step takes its state's memory over
    first_loss = np.asarray(train(*data[0]))
    call = harness.WallSampler(train, data, sample_s=sample_s)
    samplers: dict[str, harness.Sampler] = {"call": call}
    of_kernels: dict[str, float] = {}
    if jax.default_backend() != "cpu":
        samplers["host"] = harness.host_sampler(train, data)
        samplers["loop"] = harness.queued_sampler(
            lambda *batches: [train(*batch) for batch in batches], data, sample_s=_LOOP_STARTS * sample_s
        )
        scanned = _Scanned(step, state, data)
        samplers["device"] = scanned.sampler(sample_s)
        of_kernels = scanned.kernels()
    return _Side(samplers, call, first_loss, memory.temporary_bytes(compiled), of_kernels)


def run(dtypes: Sequence[str], settings: compare.Settings, *, quick: bool) -> list[dict[str, Any]]:
    """Time the step in each dtype; one entry of "steps" in the result file each.

    Times: "call", waited for; away from the CPU also "host", until a call returns, "loop", as training goes on without
    waiting, and "device", of many steps in one executable, whose parts "kernels" tells. The ratios are of "loop", or
    "call" on a CPU.
    """
    batch = _BATCH[machine.size()] // (4 if quick else 1)
    data = batches(_BATCHES, batch)
    steps = []
    for dtype in dtypes:
        prepared = {side: _prepare(backend, dtype, data, settings.sample_s) for side, backend in _BACKENDS.items()}
        kinds = list(prepared["ours"].samplers)
        # Few entries, each of many kernels: they may take longer than a comparison of one.
        samples = harness.interleave(
            {(side, kind): prepared[side].samplers[kind] for kind in kinds for side in _BACKENDS},
            rounds=settings.rounds,
            budget_s=8 * settings.budget_s,
        )
        timed = "loop" if "loop" in kinds else "call"
        sides = harness.Sides(samples["ours", timed], samples["peer", timed])
        apart = compare.difference(prepared["ours"].first_loss, prepared["peer"].first_loss)
        steps.append(
            {
                "name": f"cifar10 batch {batch}",
                "batch": batch,
                "dtype": dtype,
                "timed": timed,
                "rounds": len(sides.ours),
                **{
                    side: {
                        **{kind: harness.milliseconds(samples[side, kind]) for kind in kinds},
                        "cpu": harness.milliseconds(found.call.cpu_samples),
                        "first_loss": float(found.first_loss),
                        "temporary_bytes": found.temporary_bytes,
                        "kernels": found.kernels,
                    }
                    for side, found in prepared.items()
                },
                "ratio": sides.ratio,
                "paired_ratio": sides.paired_ratio,
                "difference": apart,
                "agrees": apart <= compare.TOLERANCE[dtype],
            }
        )
    return steps
