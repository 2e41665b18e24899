"""A whole training step: the CIFAR-10 network of `examples/` with our convolutions against its plain Flax twin.

Both sides are one jitted function of the same graph, optimiser and batch; only the convolution layer differs.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import ROOT, compare, harness, machine, memory

_MODEL = ROOT / "examples" / "cifar10_model.py"
_BACKENDS = {"ours": "knnconv", "peer": "flax"}
_BATCH = {"cpu": 64, "gpu": 256}
_BATCHES = 4  # different ones, taken in turns


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
    """Trains on: each call is the next step. Returns its loss."""

    def train(images: jax.Array, labels: jax.Array) -> jax.Array:
        nonlocal state
        state, loss = compiled(state, images, labels)
        return loss

    return train


def run(dtypes: Sequence[str], settings: compare.Settings, *, quick: bool) -> list[dict[str, Any]]:
    """Time the step in each dtype; one entry of "steps" in the result file each."""
    batch = _BATCH[machine.size()] // (4 if quick else 1)
    data = batches(_BATCHES, batch)
    steps = []
    for dtype in dtypes:
        compiled, first_loss, samplers = {}, {}, {}
        for side, backend in _BACKENDS.items():
            step, state = make_step(backend, dtype)
            compiled[side] = jax.jit(step, donate_argnums=0).lower(state, *data[0]).compile()
            train = _training(compiled[side], state)
            first_loss[side] = np.asarray(train(*data[0]))
            samplers[side] = harness.WallSampler(train, data, sample_s=settings.sample_s)
        # Few entries, each of many kernels: they may take longer than a comparison of one.
        samples = harness.interleave(samplers, rounds=settings.rounds, budget_s=8 * settings.budget_s)
        sides = harness.Sides(samples["ours"], samples["peer"])
        apart = compare.difference(first_loss["ours"], first_loss["peer"])
        steps.append(
            {
                "name": f"cifar10 batch {batch}",
                "dtype": dtype,
                "rounds": len(sides.ours),
                **{
                    side: {
                        "call": harness.milliseconds(samples[side]),
                        "cpu": harness.milliseconds(samplers[side].cpu_samples),
                        "first_loss": float(first_loss[side]),
                        "temporary_bytes": memory.temporary_bytes(compiled[side]),
                    }
                    for side in _BACKENDS
                },
                "ratio": sides.ratio,
                "paired_ratio": sides.paired_ratio,
                "difference": apart,
                "agrees": apart <= compare.TOLERANCE[dtype],
            }
        )
    return steps
