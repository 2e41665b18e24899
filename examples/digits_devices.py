"""Where a training run's arrays live: on one device, or on many, of one process or several.

Data-parallel: every device has all weights and a part of each batch; the gradients are added over the devices by the
compiled program.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def start(devices: int, *, coordinator: str | None, processes: int, process: int) -> None:
    """Make `devices` CPU devices if JAX runs on the CPU, and join the other processes. Before JAX's first use.

    Args:
        devices: of all processes together.
        coordinator: address and port of process 0; None: there is one process.
        processes: how many there are.
        process: which one this is.
    """
    here = devices // processes
    if here > 1 and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", here)
    if coordinator is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, processes, process)


class Placement:
    """Puts arrays on the first `devices` devices of all processes.

    Raises:
        ValueError: there are fewer.
    """

    def __init__(self, devices: int):
        found = jax.devices()
        if len(found) < devices:
            raise ValueError(f"--devices: got {devices}, expected at most {len(found)}, which are here")
        self._alone = devices == 1
        self._mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=found[:devices])

    def split(self, batch: Any) -> Any:
        """Each device gets a part of each array's first dimension."""
        return self._put(batch, PartitionSpec("data"))

    def replicate(self, arrays: Any) -> Any:
        """Each device gets all arrays of a pytree."""
        return self._put(arrays, PartitionSpec())

    def replicate_modules(self, *modules: Any) -> None:
        """The same in place, for all arrays in modules and optimizers."""
        nnx.update(modules, self.replicate(nnx.state(modules)))

    def _put(self, arrays: Any, spec: PartitionSpec) -> Any:
        if self._alone:
            return arrays
        sharding = NamedSharding(self._mesh, spec)

        def put(value: Any) -> jax.Array:
            # Every process holds the whole array and hands its own devices their parts.
            value = np.asarray(value)
            return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

        return jax.tree.map(put, arrays)
