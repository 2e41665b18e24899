"""The one module that talks to jax.ffi: loads the compiled modules, registers their targets, lowers calls to them.

Each platform has its own extension module (`_cpu`, `_cuda`, `_rocm`) with the same target names. A GPU module is loaded
only when a program is lowered for that platform, since its libraries may be missing elsewhere. Nothing here raises when
a module is missing: the reason is kept and told by whoever wanted to use it.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

import jax

# jax names platforms in lower case when it lowers; XLA's FFI registry spells them as below, and exactly so.
FFI_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA", "rocm": "ROCM"}

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
    reason: str | None


def target_name(operation: str) -> str:
    """The name an operation's custom call bears in compiled text."""
    return f"jax_knnconv_{operation}_v1"


@functools.cache
def load_backend(platform: str) -> Backend:
    """Load a platform's module and register its targets, once a process."""
    if platform not in FFI_PLATFORMS:
        return Backend(None, frozenset(), f"jax_knnconv has no compiled module for platform {platform!r}")
    try:
        module = importlib.import_module(f"jax_knnconv._{platform}")
    except ImportError as error:
        return Backend(None, frozenset(), f"the compiled module jax_knnconv._{platform} does not load: {error}")
    targets = module.registrations()
    for name, handler in targets.items():
        jax.ffi.register_ffi_target(name, handler, platform=FFI_PLATFORMS[platform], api_version=1)
    return Backend(module, frozenset(targets), None)


def lower_call(operation: str, ctx: Any, *operands: Any, **attributes: Any) -> Any:
    """Emit the custom call of an operation inside a lowering rule."""
    return jax.ffi.ffi_lowering(target_name(operation))(ctx, *operands, **attributes)
