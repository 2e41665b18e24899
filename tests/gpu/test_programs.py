"""Programs out of their process: exported where there is no GPU and run here, found again in the persistent cache."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import test_export

import jax_knnconv

pytestmark = pytest.mark.usefixtures("gpu")

EXPORT = """
import sys, test_export
with open(sys.argv[1], "wb") as file:
    file.write(test_export.export(["cuda"]).serialize())
"""

CACHED = """
import jax, jax.numpy as jnp, numpy as np
import jax_knnconv as jkc
events = []
jax.monitoring.register_event_listener(lambda name, **kw: events.append(name))
table = jkc.NeighborTable(np.array([[0, 1], [2, 3], [1, 2]]), num_inputs=4)
step = jax.jit(jax.grad(lambda w, x: (jkc.knn_conv(x, w, table) ** 2).sum().astype("float32")))
operands = jnp.ones((2, 3, 5), "bfloat16"), jnp.ones((2, 4, 3), "bfloat16")
lowered = step.lower(*operands)
assert "jax_knnconv_knn_dweight_v1" in lowered.as_text()
events.clear()  # the smoke calls of the kernels are cached too
dw = lowered.compile()(*operands)
print(events.count("/jax/compilation_cache/cache_hits"), *np.asarray(dw[:, 0, 0], float))
"""


def run(code, *arguments, **environment):
    folders = [pathlib.Path(jax_knnconv.__file__).parents[1], pathlib.Path(test_export.__file__).parent]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process has taken most of the memory already
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_exported_without_a_gpu_and_run_on_one(tmp_path):
    """Forward and all gradients, with a symbolic batch size; the kernels run, since pure JAX would warn."""
    program, given, returned = (tmp_path / name for name in ("program.bin", "operands.npz", "results.npz"))
    run(EXPORT, program, JAX_PLATFORMS="cpu")
    values = test_export.operands(5)
    np.savez(given, *values)
    run(test_export.RELOAD, program, given, returned)
    results = np.load(returned)
    with jax.default_device(jax.devices("cpu")[0]):
        right = jax.tree.leaves(test_export.step(*values))
    for name, want in zip(results.files, right, strict=True):
        want = np.asarray(want)
        # Cotangents are rounded to bfloat16 on the way, of sums that may differ in their last float32 bit.
        np.testing.assert_allclose(results[name], want, rtol=1e-3, atol=2e-3 * np.abs(want).max())


def test_compilation_cache_hits_in_the_second_process(tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    found = [[float(word) for word in run(CACHED, **cache).split()] for _ in range(2)]
    # Each of 2 x 3 rows of y is 2 taps of 3 ones: 6. dw sums 2y over 2 samples and 3 rows: 72.
    assert found == [[0, 72, 72], [1, 72, 72]]
