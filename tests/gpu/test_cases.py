"""Cases that only a GPU can tell, through the public operations."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import gpu_calls as calls
import gpu_dweight_calls
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv as jkc

pytestmark = pytest.mark.gpu
JUNK = (-(2**31), -50_000_000, -1, 2**31 - 1)


def run_fresh(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compiled_targets_are_used():
    """A fallback would be right too, and slow: the targets must stand in the compiled text."""
    table = jkc.NeighborTable(np.array([[0, 1], [2, -1]]), num_inputs=3)
    x, weight = jnp.ones((3, 8), "bfloat16"), jnp.ones((2, 8, 8), "bfloat16")
    loss = lambda x, w: (jkc.knn_conv(x, w, table).astype("float32") ** 2).sum()  # noqa: E731
    text = jax.jit(jax.grad(loss, (0, 1))).lower(x, weight).compile().as_text()
    for operation in ("forward", "dinput", "dweight"):
        assert f"jax_knnconv_knn_{operation}_v1" in text


def test_offsets_past_two_to_the_31():
    """Case 4 in bfloat16: x of 2^31 + 2048 elements, one tap in its last row."""
    n = 2**23 + 8
    table = jkc.NeighborTable(np.array([[n - 1]]), num_inputs=n)
    x = jax.jit(lambda: jnp.zeros((n, 256), "bfloat16").at[n - 1].set(1))()
    weight = jnp.ones((1, 256, 1), "bfloat16")
    assert jkc.knn_conv(x, weight, table).item() == 256
    dw, _ = jkc.knn_dweight(x, jnp.ones((1, 1), "bfloat16"), table)
    assert bool((dw == 1).all())
    dx = jkc.knn_dinput(jnp.ones((1, 1), "bfloat16"), weight, table)
    assert bool((dx[-1] == 1).all())
    assert float(jnp.abs(dx).astype("float32").sum()) == 256


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_junk_indices_over_a_thousand_queued_steps(dtype):
    """Case 10; the same program is what compute-sanitizer runs."""
    n = 1077
    rng = np.random.default_rng(5)
    indices = rng.integers(0, n, (n, 6))
    junk = rng.random(indices.shape) < 0.3
    indices[junk] = rng.choice([*JUNK, n, n + 1], junk.sum())
    clean = np.where((indices >= 0) & (indices < n), indices, -1)
    x, weight = jnp.asarray(rng.standard_normal((2, n, 24)), dtype), jnp.asarray(rng.standard_normal((6, 24, 24)) / 24)

    def run(indices):
        table = jkc.NeighborTable(indices, num_inputs=n)
        step = jax.jit(lambda c, w: jnp.tanh(jkc.knn_conv(c, w, table) + jkc.knn_dinput(c, w, table)))
        carry = x
        for _ in range(1000):
            carry = step(carry, weight.astype("float32"))
        return np.asarray(carry.astype("float32"))

    result = run(indices)
    assert np.isfinite(result).all()
    assert result.tobytes() == run(clean).tobytes()


def test_cpu_program_on_a_gpu_machine():
    """Case 14: a program placed on the CPU uses the CPU's handlers; a process without the GPU platform still works."""
    code = (
        "import jax, jax.numpy as jnp, jax_knnconv as k\n"
        "cpu = jax.local_devices(backend='cpu')[0]\n"
        "x, w = jax.device_put((jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1))), cpu)\n"
        "y = jax.jit(k.conv2d)(x, w)\n"
        "assert float(y.sum()) == 49 and y.devices() == {cpu}"
    )
    run_fresh(code)
    run_fresh(code, JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("operation", ["dense_forward", "knn_dweight"])
def test_errors_name_place_and_call(operation):
    """What a launcher refuses comes back as a status, with the file and line that did."""
    x, weight, indices = np.ones((1, 4, 33), "float16"), np.ones((2, 33, 8), "float16"), np.zeros((4, 2), np.int32)
    if operation == "dense_forward":
        image, window = x.reshape(1, 2, 2, 33), {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
        run = functools.partial(
            calls.dense_forward, image, weight[None], None, output_size=(2, 1), out_dtype=calls.F16, **window
        )
    else:
        g = np.ones((1, 4, 8), "float16")
        run = functools.partial(gpu_dweight_calls.knn_dweight, x, g, indices, num_slots=2, out_dtype=calls.F16)
    place = r"lib/(cuda/\.\./)?gpu/\w+\.(h|cc|cu):\d+: "
    with pytest.raises(jax.errors.JaxRuntimeError, match=place + 'kernel="hopper" does not take this call: '):
        run(kernel="hopper")
    with pytest.raises(jax.errors.JaxRuntimeError, match=place + r"IsOneOf\(rows, row_sizes\)"):
        run(tile=(48, 64, 1))


GRAPHS = """
import hashlib, jax, jax.numpy as jnp, numpy as np, jax_knnconv as jkc
rng = np.random.default_rng(0)
table = jkc.grid_table((8, 8), (3, 3))
draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), "bfloat16")
x, w, k = draw(4, 64, 32), draw(9, 32, 32), draw(3, 3, 32, 32)
step = lambda c: jnp.tanh(jkc.knn_conv(c, w, table) + jkc.conv2d(c.reshape(4, 8, 8, 32), k).reshape(c.shape))
loop = jax.jit(lambda c: jax.lax.fori_loop(0, 50, lambda i, c: step(c), c))(x)
total = lambda c: jax.lax.scan(lambda c, _: (step(c), None), c, None, length=5)[0].astype("float32").sum()
grad = jax.jit(jax.grad(total))(x)
eager, one = x, jax.jit(step)
for _ in range(50):
    eager = one(eager)
assert np.asarray(eager).tobytes() == np.asarray(loop).tobytes()
print(hashlib.sha256(np.asarray(loop).tobytes() + np.asarray(grad).tobytes()).hexdigest())
"""


def test_cuda_graphs_do_not_change_a_bit():
    """Case 16: loops captured into graphs, custom calls included, and not."""
    on = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL,WHILE --xla_gpu_graph_min_graph_size=1"
    off = "--xla_gpu_enable_command_buffer="
    assert run_fresh(GRAPHS, XLA_FLAGS=on) == run_fresh(GRAPHS, XLA_FLAGS=off)
