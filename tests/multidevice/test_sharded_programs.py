"""Sharded programs out of their process: exported and reloaded, and found again in the persistent cache."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from mesh_cases import BATCH, C_IN, C_OUT, SLOTS, N, close, mesh_of, normal, place

import jax_knnconv as jkc

X, WEIGHT = normal((BATCH, N, C_IN), (5, C_IN, C_OUT))
CHECKS = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jkc.export_targets()]
SPECS = (P("data"), P())

RELOAD = """
import sys, jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jax_knnconv as jkc
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
operands = np.load(sys.argv[2])
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
x, w = (jax.device_put(operands[n], NamedSharding(mesh, s)) for n, s in zip(operands.files, (P("data"), P())))
loss, dw = jax.jit(exported.call)(x, w)
np.savez(sys.argv[3], loss, dw)
"""


def step(x, w):
    return jax.value_and_grad(lambda w: (jkc.knn_conv(x, w, SLOTS) ** 2).sum())(w)


def on_shards(x, w):
    return jax.value_and_grad(lambda w: jax.lax.psum((jkc.knn_conv(x, w, SLOTS) ** 2).sum(), "data"))(w)


def programs():
    explicit, auto = mesh_of(AxisType.Explicit), mesh_of(AxisType.Auto)
    mapped = jax.shard_map(on_shards, mesh=auto, in_specs=SPECS, out_specs=(P(), P()))
    return {
        "Explicit": (explicit, step),
        "shard_map": (auto, mapped),
        "explicit_axes on Auto": (auto, jax.sharding.explicit_axes(step, in_sharding=SPECS)),
    }


@pytest.mark.parametrize("name", ["Explicit", "shard_map", "explicit_axes on Auto"])
def test_exported_and_reloaded(name, tmp_path):
    mesh, function = programs()[name]
    with jax.set_mesh(mesh):
        exported = jax.export.export(jax.jit(function), disabled_checks=CHECKS)(
            *place(mesh, *zip((X, WEIGHT), SPECS, strict=True))
        )
    assert exported.nr_devices == 8
    program, given, returned = (tmp_path / name for name in ("program.bin", "operands.npz", "results.npz"))
    program.write_bytes(exported.serialize())
    np.savez(given, X, WEIGHT)
    command = [sys.executable, "-c", RELOAD, str(program), str(given), str(returned)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results = np.load(returned)
    taps = {"indices": np.asarray(SLOTS.indices), "slots": np.asarray(SLOTS.slots)}
    y = oracle.knn_forward(X, WEIGHT, **taps)
    dw, _ = oracle.knn_dweight(X, 2 * y, num_slots=5, **taps)
    close([results[name] for name in results.files], [(y**2).sum(), dw])


def test_program_of_one_device_exported_where_there_are_eight():
    exported = jax.export.export(jax.jit(step), disabled_checks=CHECKS)(X, WEIGHT)
    assert exported.nr_devices == 1
    close(jax.export.deserialize(exported.serialize()).call(X, WEIGHT), step(X, WEIGHT))


def test_programs_of_auto_meshes_are_refused():
    """JAX serialises no custom_partitioning; docs/devices.md says what to do instead."""
    mesh = mesh_of(AxisType.Auto)
    placed = place(mesh, *zip((X, WEIGHT), SPECS, strict=True))
    with pytest.raises(NotImplementedError, match="serialization"):
        jax.export.export(jax.jit(step), disabled_checks=CHECKS)(*placed).serialize()


CACHED = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jax_knnconv as jkc
kind, padding = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
hits = []
# The smoke calls of the kernels, which are cached too.
jax.grad(lambda w: jkc.conv2d(jnp.ones((1, 3, 3, 1)), w).sum())(jnp.ones((3, 3, 1, 1)))
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit if kind == "Explicit" else AxisType.Auto,))
with jax.set_mesh(mesh):
    x = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 2, 2, 1), NamedSharding(mesh, P("data")))
    w = jax.device_put(np.arange(1, 10, dtype=np.float32).reshape(3, 3, 1, 1), NamedSharding(mesh, P()))
    pads = ((padding, 2 - padding),) * 2
    def step(x, w):
        y, back = jax.vjp(lambda w: jkc.conv2d(x, w, padding=pads), w)
        dw, = back(y)
        return y, dw
    if kind == "shard_map":
        specs = (P("data"), P())
        step = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs)
    traced = jax.jit(step).lower(x, w)
    jax.monitoring.register_event_listener(lambda name, **kw: hits.append(name))
    compiled = traced.compile()
    hit = int("/jax/compilation_cache/cache_hits" in hits)
    y, dw = compiled(x, w)
    print(hit, *np.asarray(y)[1].ravel(), *np.asarray(dw).ravel())
"""


@pytest.mark.parametrize("kind", ["Auto", "Explicit", "shard_map"])
def test_compilation_cache(kind, tmp_path):
    """A second process finds its sharded program, and never one that differs by a static parameter alone."""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    images, kernel = np.arange(32.0).reshape(8, 2, 2, 1), np.arange(1.0, 10).reshape(3, 3, 1, 1)
    for padding, hit in ((1, 0), (0, 0), (0, 1), (1, 1)):
        command = [sys.executable, "-c", CACHED, kind, str(padding)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found, *values = (float(word) for word in done.stdout.split())
        geometry = {"stride": (1, 1), "dilation": (1, 1), "padding": (padding, padding)}
        y = oracle.dense_forward(images, kernel, output_size=(2, 2), **geometry)
        dw, _ = oracle.dense_dweight(images, y, kernel_size=(3, 3), **geometry)
        assert values == [*y[1].ravel(), *dw.ravel()]  # integers, which float32 holds
        assert found == hit, (padding, hit)
