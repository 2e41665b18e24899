"""Weak scaling: a training step on N devices, each with the batch that one device has alone.

    speedup = (times of a step on each device alone, added) / (time of a step on all)        N is ideal

    python -m benchmarks.weak_scaling [--devices 2] [--out FILE]

All take turns, and the speedup is the median over the rounds: devices of a kind differ, and their clocks drift. The KNN
step shards its batch over an Auto mesh, as `jit` of unchanged code does. The CIFAR-10 step runs under shard_map: each
device normalises its own batch. What devices add to a step, the sum of the gradients, does not grow with the batch, so
the KNN step is measured with half of it as well. With `--limit NAME=SPEEDUP`, the exit status says whether it was
reached.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax_knnconv as jkc
from benchmarks import cifar10_step, harness, machine

_KNN_LAYERS = ((64, 128, 1024, 512), (128, 256, 512, 256), (256, 256, 256, 256))  # C_in, C_out, N, M
_KNN_TAPS = 9
_KNN_BATCH = {"cpu": 2, "gpu": 512}  # of one device
_CIFAR_BATCH = {"cpu": 16, "gpu": 1024}
_DTYPE = {"cpu": "float32", "gpu": "bfloat16"}
_SAMPLE_S = 0.1

Step = Callable[[Any, Any], tuple[Any, jax.Array]]


class Workload(NamedTuple):
    """A compiled (state, batch) -> (state, loss) with its operands on their devices."""

    step: Step
    state: Any
    batch: Any


def _put(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, spec))


def _repeated(array: np.ndarray, count: int) -> np.ndarray:
    """Each device gets the same examples, so that the loss does not depend on their number."""
    return np.concatenate([array] * count)


def knn_step(mesh: Mesh, part: int = 1) -> Workload:
    """Three KNN convolutions, mean squared error, SGD with momentum; float32 parameters; a part of the batch."""
    size = machine.size()
    random = np.random.default_rng(0)
    tables = [jkc.NeighborTable(random.integers(0, n, (m, _KNN_TAPS)), num_inputs=n) for _, _, n, m in _KNN_LAYERS]
    weights = [
        jnp.asarray(random.standard_normal((_KNN_TAPS, c, o), np.float32) * (_KNN_TAPS * c) ** -0.5)
        for c, o, _, _ in _KNN_LAYERS
    ]
    optimizer = optax.sgd(0.01, momentum=0.9)
    (channels, _, rows, _), (_, out_channels, _, out_rows) = _KNN_LAYERS[0], _KNN_LAYERS[-1]
    batch = _KNN_BATCH[size] // part
    x = random.standard_normal((batch, rows, channels), np.float32)
    target = random.standard_normal((batch, out_rows, out_channels), np.float32)

    def loss(weights: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        for weight, table in zip(weights, tables, strict=True):
            x = jnp.tanh(jkc.knn_conv(x, weight, table))
        return jnp.mean((x - target).astype(jnp.float32) ** 2)

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, momentum = state
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        updates, momentum = optimizer.update(gradients, momentum, weights)
        return (optax.apply_updates(weights, updates), momentum), value

    count = mesh.devices.size
    state = _put((weights, optimizer.init(weights)), mesh, PartitionSpec())
    dtype = _DTYPE[size]
    data = tuple(_put(jnp.asarray(_repeated(v, count), dtype), mesh, PartitionSpec("data")) for v in (x, target))
    return Workload(jax.jit(step, donate_argnums=0).lower(state, data).compile(), state, data)


def cifar10_step_per_device_norm(mesh: Mesh) -> Workload:
    """The CIFAR-10 network of `examples/`, batch statistics of each device's own examples."""
    from flax import nnx

    module = cifar10_step.example()
    size = machine.size()
    model = module.Cifar10CNN("knnconv", dtype=jnp.dtype(_DTYPE[size]), rngs=nnx.Rngs(0))
    graph, first = nnx.split((model, module.make_optimizer(model)))

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graph, state)

        def loss(model: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
            own = optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()
            return jax.lax.pmean(own, "data")

        value, gradients = nnx.value_and_grad(loss)(model, *batch)
        optimizer.update(model, gradients)
        state = nnx.state((model, optimizer))
        statistics, rest = nnx.split_state(state, nnx.BatchStat, ...)
        statistics = jax.tree.map(lambda running: jax.lax.pmean(running, "data"), statistics)
        return nnx.merge_state(statistics, rest), value

    replicated, split = PartitionSpec(), PartitionSpec("data")
    count = mesh.devices.size
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(replicated, split), out_specs=(replicated, replicated))
    state = _put(first, mesh, replicated)
    (data,) = cifar10_step.batches(1, _CIFAR_BATCH[size])
    data = tuple(_put(_repeated(np.asarray(v), count), mesh, split) for v in data)
    return Workload(jax.jit(mapped, donate_argnums=0).lower(state, data).compile(), state, data)


WORKLOADS = {
    "knn": knn_step,
    "knn_half_batch": functools.partial(knn_step, part=2),
    "cifar10": cifar10_step_per_device_norm,
}


def measure(make: Callable[[Mesh], Workload], count: int, rounds: int) -> dict[str, Any]:
    """Times of a step on each of `count` devices alone and on all, in turns, and the losses of the first steps."""
    devices = jax.devices()[:count]
    samplers, losses = [], []
    for chosen in (*([device] for device in devices), devices):
        mesh = jax.make_mesh((len(chosen),), ("data",), axis_types=(AxisType.Auto,), devices=chosen)
        work = make(mesh)
        state, loss = work.step(work.state, work.batch)
        losses.append(float(loss))
        samplers.append(_sampler(work.step, state, work.batch))
    samples = harness.interleave(dict(enumerate(samplers)), rounds=rounds)
    *alone, together = samples.values()
    return {
        "devices": count,
        "alone": [harness.milliseconds(times) for times in alone],
        "together": harness.milliseconds(together),
        "speedup": statistics.median(sum(times) / all_of for *times, all_of in zip(*alone, together, strict=True)),
        "losses_alone": losses[:-1],
        "loss_together": losses[-1],
    }


def _sampler(step: Step, state: Any, batch: Any) -> harness.Sampler:
    """Seconds a step, of many that follow each other without waiting, as in training."""

    def take(steps: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(steps):
            state, loss = step(state, batch)
        jax.block_until_ready(loss)
        return (time.perf_counter() - start) / steps

    take(1)
    steps = harness.calls_per_sample(take(3), _SAMPLE_S)
    return lambda: take(steps)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in WORKLOADS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(WORKLOADS)}")
    return name, float(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if a limit was missed or the losses differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weak_scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="may be repeated; all, if not given")
    parser.add_argument("--limit", type=_limit, action="append", default=[], metavar="NAME=SPEEDUP")
    parser.add_argument("--out", type=pathlib.Path, help="result file, JSON")
    options = parser.parse_args(arguments)
    if not 2 <= options.devices <= jax.device_count():
        parser.error(f"--devices: got {options.devices}, expected 2 to {jax.device_count()}, which are here")
    results, failed = {}, False
    for name in options.workload or WORKLOADS:
        found = results[name] = measure(WORKLOADS[name], options.devices, options.rounds)
        limit = dict(options.limit).get(name, 0.0)
        same = np.allclose(found["losses_alone"], found["loss_together"], rtol=1e-2)
        failed |= found["speedup"] < limit or not same
        print(
            f"{name:>14}: {', '.join(format(times['median_ms'], '.3f') for times in found['alone'])} ms alone, "
            f"{found['together']['median_ms']:.3f} ms together: {found['speedup']:.2f}x"
            + ("" if same else "  LOSSES DIFFER"),
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps({**machine.describe(), "weak_scaling": results}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
