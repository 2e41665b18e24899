"""cuDNN's best convolution, through PyTorch: in a process of its own, replayed from a CUDA graph.

`torch.backends.cudnn.benchmark` times the ten algorithms that cuDNN thinks best, and keeps the fastest. The graph makes
one call on each of several operand sets, as the executables of the other sides do.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import ROOT, shapes

_CHILD = f"import sys; sys.path.append({str(ROOT)!r}); from benchmarks.cudnn import child; child()"
_DTYPES = ("bfloat16", "float16")
_SAMPLE_S = 0.005
_TIMEOUT_S = 120


def _takes(shape: shapes.Shape) -> bool:
    # PyTorch pads both sides alike: with a stride the window stands a pixel off, the work is the same.
    return isinstance(shape, shapes.Dense) and shape.kernel % 2 == 1


def measure(entries: Sequence[Any], repeats: int) -> dict[Any, list[float]]:
    """Seconds a call, one a repeat, of the dense 16-bit entries; of none where there is no PyTorch or no CUDA device.

    Args:
      entries: with shape, pass_name and dtype.
      repeats: samples of each.

    Raises:
      RuntimeError: the process failed; its last words are in the message.
    """
    import jax

    from benchmarks import operands

    if jax.default_backend() != "gpu" or importlib.util.find_spec("torch") is None:
        return {}
    chosen = [entry for entry in entries if _takes(entry.shape) and entry.dtype in _DTYPES]
    jobs = [
        {
            "shape": shapes.to_json(entry.shape),
            "pass": entry.pass_name,
            "dtype": entry.dtype,
            "sets": operands.set_count(entry.shape, 2),
            "repeats": repeats,
        }
        for entry in chosen
    ]
    if not jobs:
        return {}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cuDNN's process ended with {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {entry: samples for entry, samples in zip(chosen, found, strict=True) if samples}


def _calls(torch: Any, job: dict[str, Any]) -> list[Any]:
    """One function a set of operands, which calls the pass on it."""
    shape = shapes.from_json(job["shape"])
    assert isinstance(shape, shapes.Dense)
    stride, pad = [shape.stride] * 2, [shape.kernel // 2] * 2
    outputs = {"dinput": [True, False, False], "dweight": [False, True, False]}

    def random(*dims: int) -> Any:
        values = torch.randn(dims, device="cuda", dtype=getattr(torch, job["dtype"]))
        return values.to(memory_format=torch.channels_last)

    def one_set() -> Any:
        x = random(shape.batch, shape.channels, shape.height, shape.width)
        weight = random(shape.outputs, shape.channels, shape.kernel, shape.kernel)
        g = random(shape.batch, shape.outputs, *shape.rows_out)
        if job["pass"] == "forward":
            return lambda: torch.nn.functional.conv2d(x, weight, None, stride, pad)
        backward = torch.ops.aten.convolution_backward
        # Without an output padding, of one group.
        fixed = ([1, 1], False, [0, 0], 1)
        return lambda: backward(g, x, weight, None, stride, pad, *fixed, outputs[job["pass"]])

    return [one_set() for _ in range(job["sets"])]


def _samples(torch: Any, job: dict[str, Any]) -> list[float]:
    calls = _calls(torch, job)
    side_stream = torch.cuda.Stream()
    with torch.cuda.stream(side_stream):
        for call in calls[:2]:
            call()  # chooses the algorithm
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]

    def seconds(times: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / (times * len(kept))

    seconds(1)
    times = max(1, round(_SAMPLE_S / (seconds(1) * len(kept))))
    return [seconds(times) for _ in range(job["repeats"])]


def child() -> None:
    """Time the jobs read from standard input and print the samples; the body of the process."""
    import torch

    torch.backends.cudnn.benchmark = True
    jobs = json.load(sys.stdin)
    if not torch.cuda.is_available():
        print(json.dumps([[] for _ in jobs]))
        return
    print(json.dumps([_samples(torch, job) for job in jobs]))
