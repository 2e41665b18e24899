"""CUDA graphs: a training step inside loops, command buffers on and off, against the eager loop, bit for bit.

The flags are read when JAX starts, so each setting is a process of its own.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import jax_knnconv

pytestmark = pytest.mark.usefixtures("gpu")

EVERY = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE"

PROGRAM = """
import hashlib, sys, warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp, numpy as np
import jax_knnconv as jkc

STEPS = 50
rng = np.random.default_rng(0)
table = jkc.NeighborTable(rng.integers(-1, 130, (128, 9)), rng.integers(0, 7, (128, 9)), num_inputs=128, num_slots=7)
normal = lambda scale, *shape: jnp.asarray(rng.standard_normal(shape) * scale, "float32")
# Shapes of Hopper's, the portable and the halo kernels, where the GPU has them.
x, image = normal(1, 16, 128, 64), normal(1, 4, 12, 12, 16)
state = normal(0.1, 7, 64, 64), normal(0.1, 3, 3, 16, 16), normal(0.1, 64)

def loss(state):
    weight, kernel, bias = state
    y = jkc.knn_conv(jnp.tanh(jkc.knn_conv(x, weight, table, bias, compute_dtype="bfloat16")), weight, table,
                     compute_dtype="bfloat16")
    return (y**2).mean() + (jkc.conv2d(image, kernel, stride=2, compute_dtype="float16") ** 2).mean()

def step(state):
    return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, state, jax.grad(loss)(state))

# Whole steps are compiled alike wherever they stand: what XLA fuses around a call may round otherwise.
once = jax.jit(step)
text = once.lower(state).compile().as_text()
for target in ("knn_forward", "knn_dinput", "knn_dweight", "dense_forward", "dense_dweight", "cast_operands"):
    assert f"jax_knnconv_{target}_v1" in text, target
want = state
for _ in range(STEPS):
    want = once(want)
loops = {
    "fori": lambda s: jax.lax.fori_loop(0, STEPS, lambda i, s: once(s), s),
    "while": lambda s: jax.lax.while_loop(lambda c: c[0] < STEPS, lambda c: (c[0] + 1, once(c[1])), (0, s))[1],
    "scan": lambda s: jax.lax.scan(lambda s, _: (once(s), None), s, None, length=STEPS)[0],
    "checkpoint": lambda s: jax.lax.scan(lambda s, _: (jax.checkpoint(once)(s), None), s, None, length=STEPS)[0],
    "unrolled": lambda s: jax.lax.scan(lambda s, _: (once(s), None), s, None, length=STEPS, unroll=10)[0],
}
bits = lambda state: [np.asarray(v).tobytes() for v in state]
for name, loop in loops.items():
    compiled = jax.jit(loop)
    for repeat in range(3):  # captured, then replayed, then with other buffers
        got = compiled(jax.tree.map(lambda v: v + 0, state))
        assert bits(got) == bits(want), (name, repeat)
assert all(np.isfinite(np.asarray(v)).all() for v in want)
print("bits", hashlib.sha256(b"".join(bits(want))).hexdigest())
"""


def run(flags):
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process has taken most of the memory already
        "PYTHONPATH": str(pathlib.Path(jax_knnconv.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("bits"))
    return line


def test_graphs_give_the_bits_of_launches():
    with_graphs = run(f"--xla_gpu_enable_command_buffer={EVERY} --xla_gpu_graph_min_graph_size=1")
    assert with_graphs == run("--xla_gpu_enable_command_buffer=")
