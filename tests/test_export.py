"""jax.export of forward and gradient, reloaded in a fresh process; the persistent compilation cache."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jax_knnconv as jkc

PROGRAM = """
import sys, numpy as np, jax, jax.numpy as jnp
import jax_knnconv as jkc
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
for batch in (2, 5):
    dw = exported.call(jnp.ones((batch, 4, 3)), jnp.ones((2, 3, 5)))
    assert (np.asarray(dw) == batch * 3 * 30).all(), dw
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


def test_exported_gradient_runs_in_a_fresh_process(tmp_path):
    """Case 36, with a symbolic batch size."""
    table = jkc.NeighborTable(np.array([[0, 1], [2, 3], [1, 2]]), num_inputs=4)

    (batch,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((batch, 4, 3), jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jkc.export_targets()]

    def taps(x, w):  # whole numbers throughout: each dw is a count
        return jax.vjp(lambda w: jkc.knn_conv(x, w, table), w)[1](jnp.full((x.shape[0], 3, 5), 30.0))[0]

    exported = jax.export.export(jax.jit(taps), disabled_checks=checks)(x, jax.ShapeDtypeStruct((2, 3, 5), jnp.float32))
    path = tmp_path / "taps.bin"
    path.write_bytes(exported.serialize())
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


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
            [sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout.split()[-1]))
    assert counts[1] > counts[0]
