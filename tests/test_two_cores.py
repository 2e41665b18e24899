"""Independent calls at once on two cores: none waits for a thread that another one holds.

JAX sizes its thread pools by the cores that a process may use when it starts, so the program is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import concurrent.futures
import jax, jax.numpy as jnp, numpy as np
import jax_knnconv as jkc

rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), "float32")
table = jkc.NeighborTable(rng.integers(-1, 300, (256, 9)), num_inputs=300)
xs, weights = normal(8, 4, 300, 16), normal(8, 9, 16, 16)
images, kernels = normal(8, 4, 16, 16, 8), normal(8, 3, 3, 8, 8)

def job(x, weight, image, kernel):
    y, back = jax.vjp(lambda x, weight: jkc.knn_conv(x, weight, table), x, weight)
    dense, dense_back = jax.vjp(jkc.conv2d, image, kernel)
    return y, dense, back(y), dense_back(dense)

sets = list(zip(xs, weights, images, kernels))
bits = lambda tree: b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))
single = jax.jit(job)
want = [bits(single(*operands)) for operands in sets]

# One program whose calls do not depend on each other.
together = jax.jit(lambda sets: [job(*operands) for operands in sets])
for _ in range(20):
    assert [bits(values) for values in together(sets)] == want

# Many threads, each with calls of its own, all of them in flight at once.
def work(number):
    pending = [single(*sets[(number + i) % 8]) for i in range(16)]
    return [bits(values) == want[(number + i) % 8] for i, values in enumerate(pending)]

with concurrent.futures.ThreadPoolExecutor(16) as pool:
    assert all(same for found in pool.map(work, range(16)) for same in found)
print("cores", len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not let a process choose its cores")
def test_independent_calls_on_two_cores():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["cores", str(min(2, len(os.sched_getaffinity(0))))]
