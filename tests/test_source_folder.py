"""What a process is told that imports the package from a folder in which nothing was compiled."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import jax_knnconv
from jax_knnconv import _ffi


def test_a_clone_says_where_the_installed_package_is_found(tmp_path):
    """After `pip install .`, `python -m jax_knnconv` in the clone finds the folder there first."""
    package = pathlib.Path(jax_knnconv.__file__).parent
    shutil.copytree(package, tmp_path / "jax_knnconv", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "CMakeLists.txt").touch()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = [sys.executable, "-m", "jax_knnconv"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1, done.stderr
    told = f"there is no compiled module _cpu in {tmp_path / 'jax_knnconv'}, the package's source folder"
    assert done.stdout.count(told) == 2  # of the module, and of the first call
    assert done.stdout.count("NOT USED, pure JAX instead: as above") == len(_ffi.TARGETS) - 1
    assert 'here by "python -P"' in done.stdout


@pytest.mark.parametrize(
    ("platform", "remedy"),
    [("cpu", "install the package anew"), ("cuda", "JAX_KNNCONV_CUDA=on pip install . builds it, in a clone")],
)
def test_an_installed_package_says_how_to_get_a_module(platform, remedy, tmp_path, monkeypatch):
    monkeypatch.setattr(_ffi, "__file__", str(tmp_path / "jax_knnconv" / "_ffi.py"))
    assert _ffi._how_to_get(platform).startswith(f"there is no compiled module _{platform} in {tmp_path}")
    assert _ffi._how_to_get(platform).endswith(remedy)


def test_a_module_whose_libraries_are_missing_says_so(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(_ffi.importlib, "import_module", fail)
    assert _ffi._load("cuda").reason == "the compiled module jax_knnconv._cuda does not load: No module named 'numpy'"
