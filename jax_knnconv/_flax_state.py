"""Tables in the state dicts of `flax.serialization`, from which `to_bytes` and `from_bytes` make checkpoints.

Flax writes and restores what it is told of, type by type, and is told where a table is made in a program that has
imported it: it is optional, and nothing here imports it first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class _Functions(NamedTuple):
    write: Callable[[Any], dict[str, Any]]
    read: Callable[[Any, dict[str, Any]], Any]


_untold: dict[type, _Functions] = {}


def offer(kind: type, write: Callable[[Any], dict[str, Any]], read: Callable[[Any, Any], Any]) -> None:
    """Have Flax serialize a type.

    Args:
      kind: the type.
      write: (value) -> its state, by name; parts may be of any type that Flax serializes.
      read: (target, state) -> a value like the target with what stands in the state.
    """
    _untold[kind] = _Functions(write, read)


def tell() -> None:
    """Tell Flax of the types that were offered, if this program has imported it."""
    if not _untold or "flax.serialization" not in sys.modules:
        return
    from flax import serialization  # waits where another thread is still importing it

    for kind, functions in list(_untold.items()):
        serialization.register_serialization_state(kind, *functions, override=True)
        _untold.pop(kind, None)


def write_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a value's parts."""
    from flax import serialization

    return {name: serialization.to_state_dict(part) for name, part in parts.items()}


def read_parts(what: str, parts: Mapping[str, Any], state: Any) -> dict[str, Any]:
    """Parts like a target's with what stands in the state.

    Args:
      what: the target, for the error.
      parts: the target's.
      state: a state dict of as many parts.

    Raises:
      ValueError: the state has other parts.
    """
    from flax import serialization

    if not isinstance(state, Mapping) or set(state) != set(parts):
        got = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(f"state of {what}: got {got}, expected {sorted(parts)}, as the target has them")
    return {name: serialization.from_state_dict(part, state[name], name=name) for name, part in parts.items()}
