"""Runs tests/multidevice in a process of its own with 8 virtual CPU devices: their number is fixed when JAX starts."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys


def test_on_eight_devices():
    folder = pathlib.Path(__file__).parent / "multidevice"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder)],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"},
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
