"""Calls on other devices than the default one, from many threads at once, and on all devices at once."""

from __future__ import annotations

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from mesh_cases import BATCH, C_IN, C_OUT, SLOTS, N, close, normal

import jax_knnconv as jkc

X, WEIGHT, IMAGE, KERNEL = normal((BATCH, N, C_IN), (5, C_IN, C_OUT), (4, 6, 5, C_IN), (3, 3, C_IN, C_OUT))


def step(x, weight, table, image, kernel):
    """A value and gradients of both operations, and the fused cast."""

    def loss(x, weight, kernel):
        y = jkc.knn_conv(x, weight, table, compute_dtype="bfloat16")
        return (y**2).sum() + (jkc.conv2d(image, kernel) ** 2).sum()

    return jax.value_and_grad(loss, (0, 1, 2))(x, weight, kernel)


OPERANDS = (X, WEIGHT, SLOTS, IMAGE, KERNEL)


def bits(values):
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(values))


@pytest.mark.parametrize("which", [1, 7])
@pytest.mark.parametrize("run", [step, jax.jit(step)], ids=["eager", "jit"])
def test_inputs_on_another_device(which, run):
    """Results are where the inputs are, and equal to the default device's bit for bit."""
    here = run(*OPERANDS)
    device = jax.devices()[which]
    there = run(*jax.device_put(OPERANDS, device))
    for leaf in jax.tree.leaves(there):
        assert leaf.devices() == {device}
    assert bits(there) == bits(here)
    close(
        jkc.knn_conv(*jax.device_put((X, WEIGHT, SLOTS), device)),
        oracle.knn_forward(X, WEIGHT, np.asarray(SLOTS.indices), np.asarray(SLOTS.slots)),
    )


def test_default_device_set_by_the_user():
    device = jax.devices()[3]
    with jax.default_device(device):
        table = jkc.NeighborTable(np.asarray(SLOTS.indices), np.asarray(SLOTS.slots), num_inputs=N, num_slots=5)
        y = jkc.knn_conv(jnp.asarray(np.asarray(X)), jnp.asarray(np.asarray(WEIGHT)), table)
    assert y.devices() == {device}
    assert bits(y) == bits(jkc.knn_conv(X, WEIGHT, SLOTS))


def test_threads_on_several_devices():
    """Each thread traces, compiles and runs for itself, on a device of its own, while the others do."""
    want = bits(jax.jit(step)(*OPERANDS))

    def work(number):
        device = jax.devices()[number % jax.device_count()]
        operands = jax.device_put(OPERANDS, device)
        own = jax.jit(lambda *args: step(*args))  # nothing compiled is shared
        return [bits(own(*operands)) for _ in range(4)] + [bits(jkc.knn_conv(*operands[:3]))]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(work, range(16)))
    assert all(value == want for *values, _ in found for value in values)
    assert len({forward for *_, forward in found}) == 1


def test_independent_calls_at_once():
    """Many calls on all devices at once, on few cores: none waits for a thread that another holds."""
    run = jax.jit(lambda x: sum(jkc.conv2d(x * i, KERNEL).sum() for i in range(4)))
    values = [run(jax.device_put(IMAGE, device)) for _ in range(5) for device in jax.devices()]
    assert len({bits(value) for value in values}) == 1


def test_independent_calls_of_one_program():
    """Independent calls that one program may start side by side, each big enough to be split over threads."""
    (images, kernels) = normal((8, 8, 16, 16, 8), (8, 3, 3, 8, 8))

    def run(images, kernels):
        return [jkc.conv2d(image, kernel) for image, kernel in zip(images, kernels, strict=True)]

    compiled = jax.jit(run)
    want = bits([jkc.conv2d(image, kernel) for image, kernel in zip(images, kernels, strict=True)])
    assert all(bits(compiled(images, kernels)) == want for _ in range(20))
