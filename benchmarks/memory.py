"""Memory beyond inputs and outputs: what XLA plans, and what a fresh process really comes to hold.

XLA's analysis knows every buffer of a program, but not what a handler takes with malloc; the resident memory of a
process knows both.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import psutil

from benchmarks import ROOT, shapes

_CHILD = f"import sys; sys.path.append({str(ROOT)!r}); from benchmarks.memory import child; child()"
_POLL_S = 0.0005


class Growth(NamedTuple):
    """Bytes held before a call, at its peak, and what it returned."""

    before: int
    peak: int
    result: Any

    @property
    def temporary(self) -> int:
        """Growth beyond the result's own bytes."""
        return max(0, self.peak - self.before - sum(leaf.nbytes for leaf in jax.tree.leaves(self.result)))


def temporary_bytes(compiled: Any) -> int | None:
    """Bytes of a compiled program's temporary buffers; None where XLA does not tell."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def return_freed_memory() -> None:
    """Give what malloc keeps back to the system, so that new memory is seen as growth; where malloc can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def resident_bytes() -> int:
    """What this process holds now."""
    return psutil.Process().memory_info().rss


def _by_kernel(function: Callable[[], Any]) -> Growth:
    """The kernel's own high-water mark, set back first: no short peak escapes it."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    result = function()
    return Growth(before, _status_bytes("VmHWM"), result)


def _by_polling(function: Callable[[], Any]) -> Growth:
    process, peak, stop = psutil.Process(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(_POLL_S)

    before = process.memory_info().rss
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = function()
    finally:
        stop.set()
        thread.join()
    return Growth(before, max(peak, process.memory_info().rss), result)


def resident_growth(function: Callable[[], Any]) -> Growth:
    """Growth of this process's resident memory during a call."""
    gc.collect()
    return_freed_memory()
    try:
        return _by_kernel(function)
    except OSError:
        return _by_polling(function)


def device_growth(function: Callable[[], Any], device: jax.Device) -> Growth | None:
    """Growth of a device's own memory in a process whose peak so far is what it holds; None where it does not count."""
    statistics = device.memory_stats()
    if not statistics or "peak_bytes_in_use" not in statistics:
        return None
    before = statistics["bytes_in_use"]
    result = function()
    return Growth(before, device.memory_stats()["peak_bytes_in_use"], result)


def measure_in_fresh_process(
    shape: shapes.Shape, pass_name: str, dtype: str, side: str, *, implementation: str = "auto", timeout_s: float = 300
) -> int:
    """Temporary bytes that the first call of one pass takes in a process of its own.

    Args:
      shape: what is convolved.
      pass_name: "forward", "dinput" or "dweight".
      dtype: of x, weight and g.
      side: "ours" or "peer".
      implementation: of ours.
      timeout_s: limit of the process.

    Returns:
      Bytes of peak memory (the device's on a GPU, else resident) over inputs and outputs.

    Raises:
      RuntimeError: the process failed; its last words are in the message.
    """
    job = {
        "shape": shapes.to_json(shape),
        "pass": pass_name,
        "dtype": dtype,
        "side": side,
        "implementation": implementation,
    }
    # -P: the folder that this process runs in is no place to import from.
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"memory of {job}: the process ended with {done.returncode}: {done.stderr[-2000:]}")
    return int(json.loads(done.stdout.splitlines()[-1])["temporary"])


def child() -> None:
    """Measure the job in `sys.argv[1]` and print it; the body of the fresh process."""
    from benchmarks import operands, peers

    job = json.loads(sys.argv[1])
    shape = shapes.from_json(job["shape"])
    forward = peers.ours(shape, job["implementation"]) if job["side"] == "ours" else peers.peer(shape)
    function = jax.jit(peers.one_pass(forward, job["pass"]))
    made = operands.make(shape, job["dtype"], count=1)
    arguments = (*made.sets[0], made.ours if job["side"] == "ours" else made.peer)
    compiled = function.lower(*arguments).compile()

    def call() -> Any:
        return jax.block_until_ready(compiled(*arguments))

    growth = device_growth(call, jax.devices()[0]) or resident_growth(call)
    print(json.dumps({"temporary": growth.temporary}))
