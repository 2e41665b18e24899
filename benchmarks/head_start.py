"""Work that a device gets ahead of what is timed, so that the host has queued all of that before it begins.

Without it a sample of short calls shows the host: the device waits for the first call, and where calls are shorter than
their start, for each of them.
"""

from __future__ import annotations

import functools
import math
import time

import jax
import jax.numpy as jnp
from jax import lax

_BYTES = 2**30  # takes half a millisecond on a large GPU
_ROUNDS = 4  # of one executable, so that few are in flight: JAX makes the host wait for more than some dozens
_TIMED_PIECES = 4


class HeadStart:
    """Scales a buffer in place, again and again: long pieces of work that the host starts in no time.

    Args:
      nbytes: of the buffer.
    """

    def __init__(self, nbytes: int = _BYTES):
        def rounds(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, _ROUNDS, lambda _, x: 0.5 * x + 1, x)

        self._work = jax.jit(rounds, donate_argnums=0)
        self._elements = nbytes // 4
        self._buffer = self._work(jnp.ones(self._elements, jnp.float32))
        jax.block_until_ready(self._buffer)
        start = time.perf_counter()
        for _ in range(_TIMED_PIECES):
            self._buffer = self._work(self._buffer)
        jax.block_until_ready(self._buffer)
        self._piece_s = (time.perf_counter() - start) / _TIMED_PIECES

    def __call__(self, seconds: float) -> jax.Array:
        """Start work of so many seconds or more. The result is there when it ends; the next call takes it back."""
        if self._buffer.is_deleted():  # a call was interrupted
            self._buffer = jnp.ones(self._elements, jnp.float32)
        for _ in range(max(1, math.ceil(seconds / self._piece_s))):
            self._buffer = self._work(self._buffer)
        return self._buffer


@functools.cache
def _shared() -> HeadStart:
    return HeadStart()


def for_device() -> HeadStart | None:
    """One for the default device; None where the host itself computes."""
    return None if jax.default_backend() == "cpu" else _shared()
