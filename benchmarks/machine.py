"""What a run was measured on: versions, processor, and the ceilings that floors are computed from."""

from __future__ import annotations

import functools
import os
import pathlib
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import jax_knnconv as jkc
from benchmarks import ROOT, harness, head_start

_MATMUL_SIDE = {"cpu": 1536, "gpu": 8192}
_COPY_BYTES = {"cpu": 2**27, "gpu": 2**31}
_SAMPLES = 7


def size() -> str:
    """Which sizes fit the default device: "cpu" or "gpu"."""
    return "cpu" if jax.default_backend() == "cpu" else "gpu"


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the source folder, with "+" where files differ from it; None outside a repository."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=10"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def load() -> float:
    """Processes that ran or waited to run over the last minute, this one included."""
    return os.getloadavg()[0]


def describe() -> dict[str, Any]:
    """Versions, compiled modules (with the instruction set of the CPU's), device and processor."""
    device = jax.devices()[0]
    found = jkc.doctor().versions
    return {
        "versions": {
            "jax_knnconv": jkc.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "commit": commit(),
        "modules": {name.split()[0]: value for name, value in found.items() if name.endswith(" module")},
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": platform.platform(terse=True),
        },
    }


def result_path(device: dict[str, Any], program: str = "") -> pathlib.Path:
    """Where a device's results go: the accelerator's name, or the processor's and its number of cores."""
    name = f"{device['cpu']} {device['cores']} cores" if device["platform"] == "cpu" else device["kind"]
    words = re.sub(r"[^a-z0-9]+", "-", f"{name} {program}".lower()).strip("-")
    return ROOT / "benchmarks" / "results" / f"{words}.json"


def _best_seconds(call: Callable[[Any], Any], sample_s: float = 0.05) -> float:
    # Calls queue, so that an accelerator does not wait for its host between them.
    ahead = head_start.for_device()
    sampler = harness.queued_sampler(call, [()], sample_s=sample_s, ahead=ahead)
    samples = [sampler() for _ in range(_SAMPLES)]
    return min(samples) if ahead is None else statistics.median(samples)


@functools.cache
def _negate() -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: -x, donate_argnums=0)


@functools.cache
def _square(precision: jax.lax.Precision | None) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda a: jnp.matmul(a, a, precision=precision))


def _copy_rate(nbytes: int) -> float:
    """Bytes a second, read and written, over a buffer updated in place: no new pages, which the system must clear."""
    buffer = jnp.ones((nbytes // 4,), jnp.float32)

    def call(_: Any) -> Any:
        nonlocal buffer
        buffer = _negate()(buffer)
        return buffer

    return 2 * nbytes / _best_seconds(call)


def peaks(dtypes: Iterable[str]) -> dict[str, Any]:
    """Ceilings of the default device, measured now.

    Returns:
      "flops": operations a second of a large matrix product, by dtype; that of float32 where it is higher, since 16-bit
      operands can be multiplied as float32. "bytes": bytes a second of a copy, read and written ones counted.
    """
    side = _MATMUL_SIDE[size()]
    # Random, as operands are: a GPU's clock depends on the power that products take, and those of ones take less.
    numbers = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)

    def flops(dtype: str) -> float:
        matrix = numbers.astype(dtype)
        product = _square(jax.lax.Precision.HIGHEST if dtype == "float32" else None)
        return 2 * side**3 / _best_seconds(lambda _: product(matrix))

    float32 = flops("float32")
    return {
        "flops": {dtype: float32 if dtype == "float32" else max(float32, flops(dtype)) for dtype in dtypes},
        "bytes": _copy_rate(_COPY_BYTES[size()]),
    }


def highest(*measured: dict[str, Any]) -> dict[str, Any]:
    """The best of several measurements of the ceilings: other load only lowers them."""
    return {
        "flops": {dtype: max(peaks["flops"][dtype] for peaks in measured) for dtype in measured[0]["flops"]},
        "bytes": max(peaks["bytes"] for peaks in measured),
    }


def floor_ms(operations: int, moved_bytes: int, dtype: str, ceilings: dict[str, Any]) -> float:
    """Milliseconds below which the matrix product and copy rates leave no room."""
    return 1e3 * max(operations / ceilings["flops"][dtype], moved_bytes / ceilings["bytes"])
