"""jax.export for CPU, CUDA and ROCm, reloaded in a fresh process; the persistent compilation cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv as jkc
from jax_knnconv import spatial

TABLE = jkc.NeighborTable(np.array([[0, 1], [2, 3], [1, 2]]), num_inputs=4)
SLOTTED = jkc.NeighborTable(np.array([[0, 1], [2, 9], [1, 2]]), [[0, 2], [1, 1], [2, 0]], num_inputs=4, num_slots=3)
CHECKS = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jkc.export_targets()]
PASSES = ("forward", "dinput", "dweight")

RELOAD = """
import sys, jax, numpy as np
import jax_knnconv as jkc
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
operands = np.load(sys.argv[2])
results = exported.call(*(operands[name] for name in operands.files))
np.savez(sys.argv[3], *jax.tree.leaves(results))
"""

DESCRIBE = """
import sys, jax, re
import jax_knnconv
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
print(*exported.platforms, exported.in_avals[0].shape[0], *sorted(set(re.findall("jax_knnconv_\\\\w+_v\\\\d+",
    exported.mlir_module()))))
"""

CACHED = """
import jax, jax.numpy as jnp, numpy as np
import jax_knnconv as jkc
events = []
jax.monitoring.register_event_listener(lambda name, **kw: events.append(name))
table = jkc.NeighborTable(np.array([[0, 1], [2, 3], [1, 2]]), num_inputs=4)
step = jax.jit(jax.grad(lambda w, x: (jkc.knn_conv(x, w, table) ** 2).sum()))
step(jnp.ones((2, 3, 5)), jnp.ones((2, 4, 3))).block_until_ready()
print("hits", events.count("/jax/compilation_cache/cache_hits"))
"""


def step(x, weight, bias, image, kernel):
    """A value and all gradients of both operations."""

    def loss(x, weight, bias, image, kernel):
        y = jkc.knn_conv(x, weight, SLOTTED, bias, compute_dtype="bfloat16")
        return (y**2).sum() + (jkc.conv2d(image, kernel, stride=2, compute_dtype="bfloat16") ** 2).sum()

    return jax.value_and_grad(loss, (0, 1, 2, 3, 4))(x, weight, bias, image, kernel)


def operands(batch):
    random = np.random.default_rng(0)
    shapes = ((batch, 4, 3), (3, 3, 5), (5,), (batch, 6, 5, 3), (3, 3, 3, 4))
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def export(platforms):
    """The step with a symbolic batch size."""
    (batch,) = jax.export.symbolic_shape("b")
    shapes = [
        jax.ShapeDtypeStruct((batch, *value.shape[1:]) if i in (0, 3) else value.shape, jnp.float32)
        for i, value in enumerate(operands(1))
    ]
    return jax.export.export(jax.jit(step), platforms=platforms, disabled_checks=CHECKS)(*shapes)


def targets(exported):
    return set(re.findall(r"jax_knnconv_\w+_v\d+", exported.mlir_module()))


ALL_PASSES = {f"jax_knnconv_{kind}_{name}_v1" for kind in ("dense", "knn") for name in PASSES}


def reload(exported, values, folder):
    """The results of an exported program in a fresh process."""
    program, given, returned = (folder / name for name in ("program.bin", "operands.npz", "results.npz"))
    program.write_bytes(exported.serialize())
    np.savez(given, *values)
    command = [sys.executable, "-c", RELOAD, str(program), str(given), str(returned)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results = np.load(returned)
    return [results[name] for name in results.files]


@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "cuda", "rocm"]], ids=str)
def test_exported_program_runs_in_a_fresh_process(platforms, tmp_path):
    """Case 36: forward and all gradients, with a symbolic batch size."""
    exported = export(platforms)
    assert targets(exported) == {*ALL_PASSES, "jax_knnconv_cast_operands_v1"}
    values = operands(5)
    for got, want in zip(reload(exported, values, tmp_path), jax.tree.leaves(step(*values)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


TAKES_TABLES = """
import sys, jax, numpy as np
import jax_knnconv as jkc
from jax_knnconv import spatial
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
indices, slots = [[3, 2], [1, 0]], [[2, 1], [0, 0]]
table = jkc.NeighborTable(indices, slots, num_inputs=4, num_slots=3)
sharded = spatial.NodePartition([0, 1, 1, 0], num_shards=2).shard_table(
    jkc.NeighborTable([[3], [0], [1], [2]], num_inputs=4)
)
x, weight = np.arange(8.0, dtype=np.float32).reshape(4, 2), np.array([1, 10, 100], np.float32).reshape(3, 1, 1)
y, same, exchanged = exported.call(x, weight * np.eye(2, dtype=np.float32), table, sharded)
jax.tree.map(np.testing.assert_array_equal, (same, exchanged), (table, sharded))
print(y.tolist())
"""


def test_exported_program_takes_and_returns_tables(tmp_path):
    """Also where the tables of the call are others than those that it was exported with."""
    table = jkc.NeighborTable([[0, 1], [2, 3]], [[0, 1], [1, 2]], num_inputs=4, num_slots=3)
    identity = jkc.NeighborTable([[3], [0], [1], [2]], num_inputs=4)
    sharded = spatial.NodePartition([0, 1, 1, 0], num_shards=2).shard_table(identity)
    program = jax.jit(lambda x, weight, table, sharded: (jkc.knn_conv(x, weight, table), table, sharded))
    exported = jax.export.export(program, disabled_checks=CHECKS)(jnp.ones((4, 2)), jnp.ones((3, 2, 2)), table, sharded)
    path = tmp_path / "program.bin"
    path.write_bytes(exported.serialize())
    command = [sys.executable, "-c", TAKES_TABLES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    # Row 0 reads 100 x[3] and 10 x[2], row 1 reads x[1] and x[0].
    assert done.stdout.split("\n")[0] == "[[640.0, 750.0], [2.0, 4.0]]"


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_lowered_for_a_gpu_elsewhere(platform, tmp_path):
    """Lowered without that GPU and reloaded, a program calls its kernels; float32 products are pure JAX."""
    exported = export([platform])
    wanted = {*ALL_PASSES, "jax_knnconv_cast_operands_v1"}
    assert targets(exported) == wanted
    program = tmp_path / "program.bin"
    program.write_bytes(exported.serialize())
    command = [sys.executable, "-c", DESCRIBE, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == [platform, "b", *sorted(wanted)]
    plain = jax.jit(lambda x, w: jkc.knn_conv(x, w, TABLE))
    exact = jax.export.export(plain, platforms=[platform])(jnp.ones((2, 4, 3)), jnp.ones((2, 3, 5)))
    assert targets(exact) == set()


def test_every_target_is_listed_and_versioned():
    assert {*ALL_PASSES, "jax_knnconv_knn_backward_v1", "jax_knnconv_cast_operands_v1"} == set(jkc.export_targets())


def test_compilation_cache_hits_in_the_second_process(tmp_path):
    """Case 36."""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout.split()[-1]))
    assert counts[1] > counts[0]
