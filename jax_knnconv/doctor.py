"""What works here, and if not, why: one executed call of each target on each platform."""

from __future__ import annotations

import platform as host
from typing import Any, NamedTuple

import jax
import jaxlib

from jax_knnconv import _ffi, _rules, _smoke
from jax_knnconv._version import __version__

_PLATFORM_NAMES = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "rocm": "rocm"}


class Check(NamedTuple):
    """One target on one platform. `error` is against the known answer, None where the call did not run.

    `kernel` is the family of a GPU's kernels that ran; None: those that take every call.
    """

    platform: str
    device: str
    target: str
    registered: bool
    error: float | None
    reason: str | None
    kernel: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the target ran and was right."""
        return self.error == 0


class Report(NamedTuple):
    """What `doctor` found. Its text is `str(report)`."""

    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every target of every platform here ran and was right."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def __str__(self) -> str:
        width = max(map(len, self.versions))
        lines = [f"{name:<{width}}  {value}" for name, value in self.versions.items()]
        lines.append("")
        told: set[str | None] = set()
        for check in self.checks:
            instead = "pure JAX" if check.kernel is None else "other kernels"
            reason = "as above" if check.reason in told else check.reason
            state = "ok" if check.ok else f"NOT USED, {instead} instead: {reason}"
            told.add(check.reason)
            lines.append(f"{check.platform:<5} {check.target:<32} {check.kernel or '':<6} {state}")
        return "\n".join(lines)


def _check(platform: str, device: Any, operation: str, family: str | None) -> Check:
    target = _ffi.target_name(operation)
    backend = _ffi.load_backend(platform)
    registered = target in backend.targets
    error, reason = None, backend.reason
    if registered:
        try:
            error = _smoke.error(operation, device, family)
            reason = None if error == 0 else f"wrong by {error}"
        except Exception as failure:
            reason = f"{type(failure).__name__}: {failure}"
    elif reason is None:
        reason = "not registered"
    return Check(platform, str(device.device_kind), target, registered, error, reason, family)


def _families(platform: str, device: Any, operation: str) -> tuple[str | None, ...]:
    if platform != "cuda" or operation == "cast_operands":
        return (None,)
    return None, *_rules.families_here(_ffi.load_backend(platform), device)


def doctor() -> Report:
    """Versions, platforms, registered targets, and the error of one executed smoke call of each target.

    On a GPU, a target has a call for each family of kernels that its device has: the one for all calls, "halo" for few
    channels, "hopper" on compute capability 9.0.

    Returns:
        A report; print it. ``report.ok`` tells whether every target on every platform that JAX sees here is right.
        Where one is not, calls there give one `FallbackWarning` and the pure-JAX result; where only one family of a
        GPU's kernels is not, the other kernels' result.
    """
    devices: dict[str, Any] = {}
    for name in dict.fromkeys(["cpu", *(device.platform for device in jax.local_devices())]):
        try:
            devices[_PLATFORM_NAMES.get(name, name)] = jax.local_devices(backend=name)[0]
        except RuntimeError:
            continue  # JAX_PLATFORMS leaves this platform out
    runtime = _ffi.runtime_version()
    versions = {
        "jax_knnconv": __version__,
        "python": host.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "XLA FFI of jaxlib": "unknown" if runtime is None else "{}.{}".format(*runtime),
    }
    for platform, device in devices.items():
        versions[f"{platform} device"] = str(device.device_kind)
        backend = _ffi.load_backend(platform)
        if backend.module is None:
            versions[f"{platform} module"] = f"none: {backend.reason}"
        else:
            built = "{}.{}".format(*backend.module.ffi_version())
            kernels = ", ".join(sorted(backend.implementations))
            isa = f", {backend.module.isa()}" if hasattr(backend.module, "isa") else ""
            versions[f"{platform} module"] = f"XLA FFI {built}, kernels: {kernels}{isa}"
    checks = [
        _check(platform, device, operation, family)
        for platform, device in devices.items()
        for operation in _ffi.TARGETS
        for family in _families(platform, device, operation)
    ]
    return Report(versions, tuple(checks))
