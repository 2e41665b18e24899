"""Whether compiled kernels can run here: what is built, what a GPU has, and whether a smoke call came out right.

A smoke call runs when a program first needs its target on this kind of device (`_smoke.py`). On a GPU it runs the
kernels that take every call; a family that the rules choose for some calls has one of its own, run before the first.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv import _ffi, _rules, _smoke
from jax_knnconv._rules import HandlerCall
from jax_knnconv._specs import DenseSpec
from jax_knnconv._window import beyond_gpus

IMPLEMENTATIONS = ("auto", "xla", "cpu", "wmma", "hopper")

# The platforms on which a named implementation exists.
_PLATFORMS_OF = {"auto": ("cpu", "cuda", "rocm"), "cpu": ("cpu",), "wmma": ("cuda", "rocm"), "hopper": ("cuda",)}

# What a call whose shape chooses a family is left to where that family fails.
_WITHOUT = {"hopper": "wmma", "halo": "portable"}


class FallbackWarning(RuntimeWarning):
    """A compiled kernel cannot run here; the pure-JAX implementation, or another kernel, takes its place."""


_lock = threading.Lock()
# (platform, device kind, operation, family of kernels or None) whose smoke call was right
_proven: set[tuple[str, str, str, str | None]] = set()
# (platform, family, reason) already told, until the path works again
_warned: set[tuple[str, str | None, str]] = set()


def devices_by_kind(platform: str) -> list[Any]:
    """One device of each kind that this process has on a platform; none where it has none.

    A program is lowered for a platform: whichever device it is started on must be able to run it.
    """
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError:
        return []
    return list({device.device_kind: device for device in reversed(devices)}.values())


def why_not(operation: str, platform: str, implementation: str = "auto") -> str | None:
    """The reason why a compiled operation cannot run on a platform, or None if it can or none of its devices is here.

    Success is remembered for each kind of device; a failure is looked at again every time, so that a path that works
    again is used again.
    """
    if platform not in _PLATFORMS_OF[implementation]:
        return f"implementation {implementation!r} does not exist on platform {platform!r}"
    devices = devices_by_kind(platform)
    if not devices:
        return None  # lowered for another machine: what is installed and runs there cannot be asked here
    backend = _ffi.load_backend(platform)
    if backend.reason is not None:
        return backend.reason
    if _ffi.target_name(operation) not in backend.targets:
        return f"target {_ffi.target_name(operation)!r} is not registered for platform {platform!r}"
    if implementation not in ("auto", "cpu") and implementation not in backend.implementations:
        return f"the {platform} module was built without the {implementation!r} kernels"
    failures = (_smoke_failure(operation, platform, device) for device in devices)
    return next((failure for failure in failures if failure is not None), None)


def _smoke_failure(operation: str, platform: str, device: Any, family: str | None = None) -> str | None:
    key = (platform, device.device_kind, operation, family)
    with _lock:
        if key in _proven:
            return None
    failure = _smoke.run(operation, device, family)
    with _lock:
        if failure is None:
            _proven.add(key)
            _warned.difference_update({entry for entry in _warned if entry[:2] == (platform, family)})
    return failure


def takes(operation: str, platform: str, operands: Sequence[Any], spec: Any = None) -> str | None:
    """The reason why no compiled kernel of a platform takes such a call, or None if one does.

    Tensor cores multiply 16-bit numbers; the other float operand may be float32. Only the cast has no product. A GPU's
    kernels have a limit to the window, too.

    Args:
      operation: the handler's.
      platform: that the call is lowered for.
      operands: of the call; their dtypes are looked at.
      spec: of the call; None: of no window.
    """
    if platform == "cpu" or operation == "cast_operands":
        return None
    floats = [operand.dtype for operand in operands if jnp.issubdtype(operand.dtype, jnp.floating)]
    if not any(dtype.itemsize == 2 for dtype in floats):
        return f"its kernels take float16 or bfloat16 operands, got {', '.join(sorted({d.name for d in floats}))}"
    return beyond_gpus(operation.rpartition("_")[2], spec) if isinstance(spec, DenseSpec) else None


def lacks(platform: str, operands: Sequence[Any], kernel: str | None = None) -> str | None:
    """The reason why this machine's GPU cannot multiply operands of these dtypes in this kernel, or None if it can."""
    bfloat16 = any(operand.dtype == jnp.bfloat16 for operand in operands)
    if platform != "cuda" or not (bfloat16 or kernel == "hopper"):
        return None
    for device in devices_by_kind(platform):
        capability = getattr(device, "compute_capability", None)
        if capability is None:
            continue
        if kernel == "hopper" and float(capability) != 9:
            return f"the 'hopper' kernels need compute capability 9.0, {device.device_kind} has {capability}"
        if bfloat16 and float(capability) < 8:
            return f"products of bfloat16 need compute capability 8.0, {device.device_kind} has {capability}"
    return None


def working_kernels(
    operation: str, calls: Sequence[HandlerCall], forced: dict[str, Any], named: str | None
) -> tuple[dict[str, Any], str | None]:
    """What a call on the GPUs that are here must force to run on kernels that work there.

    Args:
      operation: the handler's.
      calls: the passes that the call is made of, as the rules know them.
      forced: the attributes that force what implementation and config ask for.
      named: the family that the config names.

    Returns:
      (attributes that force a choice, None), or (`forced`, the reason why the family that the implementation names
      cannot run).

    Raises:
      ValueError: no kernel can do what is forced, or the family that the config names cannot run.
    """
    backend, devices = _ffi.load_backend("cuda"), devices_by_kind("cuda")
    found = forced
    while True:
        asked = ((f, device) for device in devices for f in sorted(_rules.families(backend, calls, found, device)))
        answers = ((family, _smoke_failure(operation, "cuda", device, family)) for family, device in asked)
        family, reason = next(((f, reason) for f, reason in answers if reason is not None), (None, None))
        if family is None or reason is None:
            return found, None
        if named == family:
            raise ValueError(
                f"KernelConfig.kernel: got {family!r}, which cannot run {operation} here ({reason}), expected None, "
                "which leaves the call to kernels that run"
            )
        if found.get("kernel") == family:
            return forced, f"the {family!r} kernels: {reason}"
        warn_once(f"the {family!r} kernels of {operation}", "cuda", reason, "other tensor-core kernels", family)
        found = {**found, "kernel": _WITHOUT[family]}


def partial_slices(calls: Sequence[HandlerCall], forced: dict[str, Any]) -> int | None:
    """Slices of partial sums that calls need on the GPUs that are here; None where there is none to ask."""
    return _rules.partial_slices(_ffi.load_backend("cuda").module, calls, forced, devices_by_kind("cuda"))


def warn_once(what: str, platform: str, reason: str, instead: str, family: str | None = None) -> None:
    """Warn that something cannot run for a reason, unless that was told before."""
    with _lock:
        if (platform, family, reason) in _warned:
            return
        _warned.add((platform, family, reason))
    warnings.warn(
        f"jax_knnconv: {what} cannot run on {platform}: {reason}. Using {instead} instead.",
        FallbackWarning,
        stacklevel=2,
    )
