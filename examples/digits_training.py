"""Trains one model on the digits with AdamW and a cosine schedule."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from digits_data import Split, batches
from digits_devices import Placement
from flax import nnx
from tqdm import tqdm

BATCH = 64
_LEARNING_RATE = 5e-3


class Epoch(NamedTuple):
    """What one pass over the training images came to."""

    model: str
    epoch: int  # from 1
    train_loss: float  # mean over the epoch's steps, while the weights move
    test_loss: float
    test_accuracy: float
    seconds: float  # since training began, compilation included


def _loss(model: nnx.Module, batch: Split) -> tuple[jax.Array, jax.Array]:
    logits = model(batch.x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()
    return loss, (logits.argmax(axis=-1) == batch.labels).mean()


@nnx.jit
def _step(model: nnx.Module, optimizer: nnx.Optimizer, batch: Split) -> jax.Array:
    (loss, _), gradients = nnx.value_and_grad(_loss, has_aux=True)(model, batch)
    optimizer.update(model, gradients)
    return loss


_evaluate = nnx.jit(_loss)


def train(
    name: str,
    make: Any,
    train_split: Split,
    test_split: Split,
    *,
    epochs: int,
    seed: int,
    placement: Placement,
    log: Callable[[Epoch], None],
) -> list[Epoch]:
    """Build the model class `make` from the seed and train it; each epoch is handed to `log` as it ends.

    Returns:
        All epochs. The last one's test accuracy is the result: no epoch is picked by its test accuracy.
    """
    train_split, test_split = (split._replace(x=make.see(split.x)) for split in (train_split, test_split))
    model = make(rngs=nnx.Rngs(seed))
    steps = epochs * (len(train_split.labels) // BATCH)
    schedule = optax.cosine_decay_schedule(_LEARNING_RATE, steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
    placement.replicate_modules(model, optimizer)
    test_split = placement.replicate(test_split)
    rng = np.random.default_rng(seed)
    history: list[Epoch] = []
    start = time.perf_counter()
    with tqdm(total=steps, desc=f"{name:>5}", unit="step", disable=jax.process_index() > 0) as bar:
        for epoch in range(1, epochs + 1):
            losses = []
            for batch in batches(train_split, BATCH, rng):
                losses.append(_step(model, optimizer, placement.split(batch)))
                bar.update()
            test_loss, accuracy = (float(value) for value in _evaluate(model, test_split))
            seconds = time.perf_counter() - start
            history.append(Epoch(name, epoch, float(np.mean(losses)), test_loss, accuracy, seconds))
            log(history[-1])
            bar.set_postfix(loss=f"{history[-1].train_loss:.3f}", test_accuracy=f"{accuracy:.1%}")
    return history
