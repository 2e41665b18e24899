"""The one module that talks to jax.ffi: loads the compiled modules, registers their targets, lowers calls to them.

Each platform has its own extension module (`_cpu`, `_cuda`, `_rocm`) with the same target names. Importing the
package registers those whose platform is installed, so that a program exported or cached by another process finds its
targets; a GPU module is not touched where JAX has no plugin for that GPU, since its libraries may be missing. Nothing
here raises when a module is missing: the reason is told by whoever wanted to use it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pathlib
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jaxlib

# jax names platforms in lower case when it lowers; XLA's FFI registry spells them as below, and exactly so.
FFI_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA", "rocm": "ROCM"}

# The packages by which JAX knows a GPU platform.
_PLUGINS = {
    "cuda": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "rocm": ("jax_rocm7_plugin", "jax_rocm60_plugin"),
}

TARGETS = (
    "cast_operands",
    "dense_forward",
    "dense_dinput",
    "dense_dweight",
    "knn_forward",
    "knn_dinput",
    "knn_dweight",
    "knn_backward",
)


class Backend(NamedTuple):
    """A platform's extension module, or the reason why there is none."""

    module: ModuleType | None
    targets: frozenset[str]
    implementations: frozenset[str]  # which kernels it holds: "cpu", or "wmma" and "hopper"
    reason: str | None


def _missing(reason: str) -> Backend:
    return Backend(None, frozenset(), frozenset(), reason)


def target_name(operation: str) -> str:
    """The name an operation's custom call bears in compiled text."""
    return f"jax_knnconv_{operation}_v1"


def export_targets() -> tuple[str, ...]:
    """The custom call targets that a program exported with `jax.export` may hold.

    ``jax.export.export(f, disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name) for name in
    export_targets()])``. Names are versioned: a target never changes its meaning under the same name.
    """
    return tuple(target_name(operation) for operation in TARGETS)


@functools.cache
def runtime_version() -> tuple[int, int] | None:
    """XLA FFI (major, minor) of the installed jaxlib, from the headers that it ships; None if it ships none."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    try:
        numbers = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
        return int(numbers["MAJOR"]), int(numbers["MINOR"])
    except (OSError, KeyError):
        return None


_loaded: dict[str, Backend] = {}


def load_backend(platform: str) -> Backend:
    """Load a platform's module and register its targets; once a process, unless it failed."""
    if platform not in _loaded:
        backend = _load(platform)
        if backend.reason is not None:
            return backend
        _loaded[platform] = backend
    return _loaded[platform]


def register_installed() -> None:
    """Load the modules of all platforms that JAX could run on here; starts no JAX backend."""
    load_backend("cpu")
    for platform, plugins in _PLUGINS.items():
        if any(importlib.util.find_spec(plugin) is not None for plugin in plugins):
            load_backend(platform)


def _load(platform: str) -> Backend:
    if platform not in FFI_PLATFORMS:
        return _missing(f"jax_knnconv has no compiled module for platform {platform!r}")
    name = f"jax_knnconv._{platform}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            return _missing(f"the compiled module {name} does not load: {error}")
        return _missing(_how_to_get(platform))
    except ImportError as error:
        return _missing(f"the compiled module {name} does not load: {error}")
    built, runtime = tuple(module.ffi_version()), runtime_version()
    if runtime is not None and (built[0] != runtime[0] or built[1] > runtime[1]):
        return _missing(
            f"{name} was built for XLA FFI {built[0]}.{built[1]}, but the installed jaxlib "
            f"{jaxlib.__version__} speaks {runtime[0]}.{runtime[1]}: build against an older jaxlib or install a newer "
            "one"
        )
    targets = module.registrations()
    for target, handler in targets.items():
        jax.ffi.register_ffi_target(target, handler, platform=FFI_PLATFORMS[platform], api_version=1)
    return Backend(module, frozenset(targets), frozenset(module.implementations()), None)


def _how_to_get(platform: str) -> str:
    """Why a module that is not there is not there, most likely."""
    folder = pathlib.Path(__file__).parent
    missing = f"there is no compiled module _{platform} in {folder}"
    if (folder.parent / "CMakeLists.txt").exists():
        return (
            f"{missing}, the package's source folder. What pip has installed is imported from any other working "
            'directory, and here by "python -P"'
        )
    if platform == "cpu":
        return f"{missing}: install the package anew"
    return f"{missing}: it was installed without; JAX_KNNCONV_{platform.upper()}=on pip install . builds it, in a clone"


def lower_call(operation: str, ctx: Any, *operands: Any, **attributes: Any) -> Any:
    """Emit the custom call of an operation inside a lowering rule."""
    return jax.ffi.ffi_lowering(target_name(operation))(ctx, *operands, **attributes)


def call(operation: str, results: Sequence[jax.ShapeDtypeStruct], *operands: Any, **attributes: Any) -> Any:
    """Call a target directly, without any of the layers above it."""
    return jax.ffi.ffi_call(target_name(operation), tuple(results))(*operands, **attributes)
