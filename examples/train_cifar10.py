"""Trains the benchmark's CIFAR-10 network for a number of steps and prints its loss and the time of a step.

    python examples/train_cifar10.py [--steps 100] [--data ARCHIVE] [--backend knnconv] [--dtype bfloat16]

Without --data, images are synthetic: the loss goes down, but an accuracy would mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import jax
import numpy as np
from cifar10_data import endless_batches, load, synthesize
from cifar10_model import BACKENDS, Cifar10CNN, make_optimizer, train_step
from flax import nnx

_REPORTS = 10  # lines printed on the way


def _parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--data", type=Path, help="cifar-10-python.tar.gz or cifar-10-batches-py; synthetic without")
    parser.add_argument("--backend", choices=BACKENDS, default="knnconv", help="whose convolutions")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of computation")
    parser.add_argument("--steps", type=int, default=100, help="of training")
    parser.add_argument("--batch", type=int, default=256, help="images of a step")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the images' order")
    options = parser.parse_args(arguments)
    for name in ("steps", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: got {getattr(options, name)}, expected at least 1")
    return parser, options


def main(arguments: list[str] | None = None) -> None:
    """Train and print."""
    parser, options = _parse(arguments)
    try:
        images = synthesize(max(2048, options.batch), options.seed) if options.data is None else load(options.data)
        stream = endless_batches(images, options.batch, np.random.default_rng(options.seed))
        first = next(stream)
    except ValueError as error:
        parser.error(str(error))
    source = "synthetic images" if options.data is None else f"{len(images.labels)} images of {options.data}"
    print(f"{options.backend}, {options.dtype}, batch {options.batch}, {source}, {jax.devices()[0].device_kind}")

    model = Cifar10CNN(options.backend, dtype=options.dtype, rngs=nnx.Rngs(options.seed))
    optimizer = make_optimizer(model)
    start = time.perf_counter()
    loss = float(train_step(model, optimizer, first.x, first.labels))
    print(f"step {1:>5}  loss {loss:.4f}  first step, compilation included: {time.perf_counter() - start:.1f} s")

    seconds: list[float] = []
    every = max(1, options.steps // _REPORTS)
    for step in range(2, options.steps + 1):
        batch = next(stream)
        start = time.perf_counter()
        loss = float(train_step(model, optimizer, batch.x, batch.labels))
        seconds.append(time.perf_counter() - start)
        if step % every == 0 or step == options.steps:
            recent = statistics.median(seconds[-every:])
            print(f"step {step:>5}  loss {loss:.4f}  {recent * 1e3:.1f} ms a step", flush=True)
    if seconds:
        print(f"median of {len(seconds)} steps: {statistics.median(seconds) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
