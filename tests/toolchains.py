"""Tests of what compilers make of lib/, which is built here: of its kinds "emulation", "cuda" and "rocm".

JAX_KNNCONV_TOOLCHAINS lists the kinds that must run: a compiler or module that is missing then fails the test instead
of skipping it. "off" skips them all (continuous integration runs them once, not for every Python).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def need(kind: str, present: bool, what: str) -> None:
    """Skip the calling test unless `present`, or fail it where its kind is required."""
    wanted = os.environ.get("JAX_KNNCONV_TOOLCHAINS", "")
    if wanted == "off":
        pytest.skip("JAX_KNNCONV_TOOLCHAINS=off")
    if present:
        return
    if kind in wanted.split():
        pytest.fail(f"{what} is missing, and JAX_KNNCONV_TOOLCHAINS={wanted!r}")
    pytest.skip(f"needs {what}")


def need_programs(kind: str, *names: str) -> None:
    """As `need`, for programs on the path."""
    for name in names:
        need(kind, shutil.which(name) is not None, f"the program {name}")


def run(
    command: Sequence[str | pathlib.Path], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, in `environment` or this one, and capture what it prints."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)


def check(command: Sequence[str | pathlib.Path], environment: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed; what it prints on standard output."""
    result = run(command, environment)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}{result.stderr[-4000:]}"
    return result.stdout
