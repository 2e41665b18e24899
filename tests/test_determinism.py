"""Same shapes, same bits: every run, every process, any number of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jax_knnconv as jkc


def digest() -> str:
    """The bits of forward and gradients on a table of many shared neighbours."""
    rng = np.random.default_rng(0)
    table = jkc.NeighborTable(rng.integers(0, 40, (700, 9)), num_inputs=300)
    x, w, b = (jnp.asarray(rng.standard_normal(s), "float32") for s in ((3, 300, 24), (9, 24, 40), (40,)))
    image, kernel = (jnp.asarray(rng.standard_normal(s), "float32") for s in ((5, 17, 13, 20), (3, 3, 20, 24)))

    @jax.jit
    def run(x, w, b, image, kernel):
        knn = jax.value_and_grad(lambda *a: (jkc.knn_conv(a[0], a[1], table, a[2]) ** 2).sum(), (0, 1, 2))
        dense = jax.value_and_grad(lambda *a: (jkc.conv2d(*a, stride=2) ** 2).sum(), (0, 1))
        return knn(x, w, b), dense(image, kernel)

    found = hashlib.sha256()
    for leaf in jax.tree.leaves(run(x, w, b, image, kernel)):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


def test_fifty_runs_three_processes_one_thread():
    """Case 11; the last process has a single core."""
    first = digest()
    assert all(digest() == first for _ in range(49))
    code = "import test_determinism; print(test_determinism.digest())"
    folder = os.path.dirname(__file__)
    core = min(os.sched_getaffinity(0))
    for prefix in ("", "", f"import os; os.sched_setaffinity(0, {{{core}}}); "):
        done = subprocess.run(
            [sys.executable, "-c", prefix + code], cwd=folder, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == first
