"""Flax is optional."""

import subprocess
import sys

_WITHOUT_FLAX = """
import sys
import jax_knnconv
jax_knnconv.NeighborTable([[0]], num_inputs=1)
assert not [name for name in sys.modules if name.split(".")[0] == "flax"], "flax was imported"
sys.modules["flax"] = None
for module in ("linen", "nnx"):
    try:
        __import__(f"jax_knnconv.{module}")
    except ImportError as error:
        assert str(error) == f"jax_knnconv.{module} needs Flax, which is not installed: pip install flax", error
    else:
        raise AssertionError(f"{module} was imported without flax")
"""


def test_without_flax():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_FLAX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
