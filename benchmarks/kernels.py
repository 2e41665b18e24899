"""What the kernels of a program take of a GPU, as `jax.profiler` sees them."""

from __future__ import annotations

import pathlib
import re
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

# Ours, and cuDNN's; XLA's own kernels bear the names of its fusions.
_CONVOLUTION = re.compile("knnconv::|cudnn|fprop|dgrad|wgrad|convolve")


class Kernel(NamedTuple):
    """A piece of a device's work; times in nanoseconds."""

    name: str
    start: float
    duration: float

    @property
    def is_convolution(self) -> bool:
        """Whether it belongs to a convolution."""
        return _CONVOLUTION.search(self.name) is not None


def kernels_of(profile: Any) -> list[Kernel]:
    """The work on all streams of the GPUs in a profile, by its start."""
    return sorted(
        (
            Kernel(event.name, event.start_ns, event.duration_ns)
            for plane in profile.planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ),
        key=lambda kernel: kernel.start,
    )


def record(run: Callable[[], Any]) -> list[Kernel]:
    """What the device does while `run` runs and its result is waited for; nothing where there is no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        files = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
        return [kernel for file in files for kernel in kernels_of(jax.profiler.ProfileData.from_file(str(file)))]


def split(kernels: Sequence[Kernel], steps: int) -> dict[str, float]:
    """Milliseconds a step: of its convolutions, of all else, and of waits between one kernel and the next.

    Args:
      kernels: of so many steps, by their start.
      steps: at least one.
    """
    spent = {"convolutions": 0.0, "others": 0.0, "waits": 0.0}
    end = kernels[0].start if kernels else 0.0
    for kernel in kernels:
        spent["convolutions" if kernel.is_convolution else "others"] += kernel.duration
        spent["waits"] += max(0.0, kernel.start - end)
        end = max(end, kernel.start + kernel.duration)
    return {name: 1e-6 * nanoseconds / steps for name, nanoseconds in spent.items()}
