"""Trains a network on the sphere, its nodes sharded over devices: every device holds a region and a halo.

    python examples/train_sphere.py [--devices 8] [--level 4] [--steps 300]

The task is a small weather forecast: fields on an icosphere drift with a solid-body rotation, and the network learns to
advance them by one step. Without accelerators, the devices are virtual ones of the CPU. The exit status is 1 if the
forecast is not better than `--target` times that of no change.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from icosphere import icosphere
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tqdm import trange

import jax_knnconv as jkc
from jax_knnconv import spatial

BATCH = 4
CHANNELS = 16
_AXIS = "space"
_WAVES = 6  # plane waves that make a field
_STEP = 0.15  # radians of a time step
_LEARNING_RATE = 5e-3


class Sphere(NamedTuple):
    """Nodes of two levels, and the tables between them, one part a device."""

    fine: spatial.NodePartition
    tables: dict[str, spatial.ShardedTable]
    points: np.ndarray  # [P * S, 3], the fine nodes in sharded order


def make_sphere(level: int, num_shards: int) -> Sphere:
    """Partition the nodes once, and cut every layer's table along it."""
    points, coarse_points = (icosphere(at)[0] for at in (level, level - 1))
    spacing = 2 / np.sqrt(len(points))
    # A neighbour's weight follows from where it lies: at one of seven places around the output.
    places = np.concatenate([np.zeros((1, 3)), np.eye(3), -np.eye(3)]) * 1.5 * spacing
    around = jkc.knn_table(points, k=7, kernel_points=places)
    down = jkc.knn_table(points, coarse_points, k=7, kernel_points=places)
    level_below = jkc.knn_table(coarse_points, k=7, kernel_points=2 * places)
    up = jkc.knn_table(coarse_points, points, k=3, kernel_points=2 * places)
    fine = spatial.partition_nodes(num_shards, points=points)
    coarse = fine.follow(down)
    tables = {
        "around": fine.shard_table(around),
        "down": fine.shard_table(down, coarse),
        "coarse": coarse.shard_table(level_below),
        "up": coarse.shard_table(up, fine),
    }
    return Sphere(fine, tables, fine.shard(points.astype(np.float32)))


def init_weights(key: jax.Array) -> dict[str, jax.Array]:
    """Seven matrices a layer."""
    channels = {"in": (4, CHANNELS), "down": 2 * (CHANNELS,), "coarse": 2 * (CHANNELS,), "up": 2 * (CHANNELS,)}
    channels |= {"middle": 2 * (CHANNELS,), "out": (CHANNELS, 1)}
    keys = jax.random.split(key, len(channels))
    return {
        name: jax.random.normal(key, (7, *shape)) / np.sqrt(7 * shape[0])
        for key, (name, shape) in zip(keys, channels.items(), strict=True)
    }


def forecast(
    weights: dict[str, jax.Array], field: jax.Array, points: jax.Array, tables: dict[str, spatial.ShardedTable]
) -> jax.Array:
    """The field [B, P * S, 1] one time step later: itself and a correction, from two levels."""
    convolve = functools.partial(spatial.knn_conv_sharded, axis_name=_AXIS)
    where = jnp.broadcast_to(points, (*field.shape[:-1], 3))
    x = jax.nn.gelu(convolve(jnp.concatenate([field, where], -1), weights["in"], tables["around"]))
    y = jax.nn.gelu(convolve(x, weights["down"], tables["down"]))
    y = jax.nn.gelu(convolve(y, weights["coarse"], tables["coarse"]))
    x = jax.nn.gelu(convolve(x, weights["middle"], tables["around"]) + convolve(y, weights["up"], tables["up"]))
    return field + convolve(x, weights["out"], tables["around"])


def make_fields(key: jax.Array, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Random smooth fields [B, P * S, 1], now and one step later; every device makes its own nodes' part."""
    of_waves, of_phases = jax.random.split(key)
    waves = 2 * jax.random.normal(of_waves, (BATCH, 1, _WAVES, 3))
    phases = jax.random.uniform(of_phases, (BATCH, 1, _WAVES), maxval=2 * np.pi)
    cosine, sine = np.cos(_STEP), np.sin(_STEP)
    turned = points @ jnp.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]], jnp.float32)

    def at(places: jax.Array) -> jax.Array:
        return jnp.sin((waves * places[None, :, None]).sum(-1) + phases).mean(-1, keepdims=True)

    return at(points), at(turned)


def mean_square(difference: jax.Array, is_node: jax.Array) -> jax.Array:
    """The mean over nodes; rows of the padding are no nodes."""
    return (is_node[:, None] * difference**2).sum() / (BATCH * is_node.sum())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--devices", type=int, default=8, help="over which nodes are sharded; virtual ones on a CPU")
    parser.add_argument("--level", type=int, default=4, help="of the icosphere: 10 * 4**level + 2 nodes")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the fields")
    parser.add_argument("--target", type=float, default=0.5, help="highest error, as a part of that of no change")
    options = parser.parse_args(arguments)
    for name, least in (("devices", 1), ("level", 1), ("steps", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, print the errors; 0 if the forecast reached the target."""
    options = parse(arguments)
    jax.config.update("jax_num_cpu_devices", options.devices)
    sphere = make_sphere(options.level, options.devices)
    for name, table in sphere.tables.items():
        print(f"{name}: {table.exchange}")

    devices = jax.devices()[: options.devices]
    mesh = jax.make_mesh((options.devices,), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    jax.set_mesh(mesh)
    points, is_node, tables = jax.device_put(
        (sphere.points, sphere.fine.row_mask, sphere.tables), NamedSharding(mesh, PartitionSpec(_AXIS))
    )
    key = jax.random.key(options.seed)
    weights = jax.device_put(init_weights(key), NamedSharding(mesh, PartitionSpec()))
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, options.steps))

    @jax.jit
    def train(weights: Any, state: Any, key: jax.Array, points: Any, is_node: Any, tables: Any) -> Any:
        now, later = make_fields(key, points)

        def error(weights: Any) -> jax.Array:
            return mean_square(forecast(weights, now, points, tables) - later, is_node)

        loss, gradients = jax.value_and_grad(error)(weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, loss / mean_square(now - later, is_node)

    state = optimizer.init(weights)
    errors = []
    for step in (bar := trange(options.steps, unit="step")):
        weights, state, error = train(weights, state, jax.random.fold_in(key, step), points, is_node, tables)
        errors.append(float(error))
        bar.set_postfix(error=f"{errors[-1]:.4f}")
    reached = float(np.mean(errors[-10:]))
    print(f"error of the last steps: {reached:.5f} of that of no change")
    if reached > options.target:
        print(f"above the target of {options.target}")
    return int(reached > options.target)


if __name__ == "__main__":
    raise SystemExit(main())
