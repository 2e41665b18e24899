"""Which tensor-core kernel runs, and its tile geometry, for those who want to force them."""

from __future__ import annotations

import dataclasses

_FRAGMENT = 16  # rows, columns and depth of one tensor-core fragment
_MULTIPLES = {
    "bm": _FRAGMENT,
    "bn": _FRAGMENT,
    "bk": _FRAGMENT,
    "rb": 1,
    "wm": _FRAGMENT,
    "wn": _FRAGMENT,
    "ksteps": 1,
    "ksplit": 1,
}
KERNELS = ("portable", "halo", "hopper")


@dataclasses.dataclass(frozen=True)
class KernelConfig:
    """Tile geometry of a tensor-core kernel: y tile [bm, bn] = sum over depth steps of bk.

    Fields left None are chosen by shape; `default_config` tells what a call gets. A config belongs to the tensor-core
    implementations: where another one runs (``"cpu"``, ``"xla"``), it has no tiles to set and is not looked at. On a
    GPU it holds for the call's gradients too, whose kernels must then ship what it asks for; to force one pass alone,
    call it by name (`conv2d_dweight`, ...).

    The portable kernels ship, for forward and dinput, bm 16, 64, 128 and bn 32, 64, 128 with bk 64; for dweight, where
    the tile is of dw as a matrix [V·C_in, C_out], bm and bn 32, 64, 128. Where asynchronous 16-byte copies cannot fill
    a tile (vec=False, async_copy=False, channels no multiple of 8 in calls that do not round them up; KNN dinput in
    bfloat16 with a batch of up to 8), forward and dinput have bm 64 alone; dweight has bm 32 and 128, or 64 alone where
    async_copy=False is the only reason. What follows from bm and bn (wm, wn, and bk of dweight) may be given beside
    both of them. A value that no kernel has is a ValueError when the call is lowered for a GPU, and so is what the GPU
    that is there cannot do: a tile that its shared memory does not hold, a kernel that does not take the call, a split
    without room for its partial sums.

    Attributes:
        bm: rows of a thread block's tile, a multiple of 16.
        bn: columns of a thread block's tile, a multiple of 16.
        bk: depth of one staged step, a multiple of 16.
        rb: tiles of bm rows multiplied against one staged weight tile. 1 alone ships: a tile's rows are batch entries
            (and nodes) already, all of which share each staged weight tile, so that a larger bm is what reuses it more.
        wm: rows of one warp's tile, a multiple of 16 that divides bm.
        wn: columns of one warp's tile, a multiple of 16 that divides bn.
        ksteps: depth steps held in shared memory at once.
        ksplit: slices of dweight's split sum; 1 is unsplit. Other passes are never split and do not look at it.
        async_copy: stage with asynchronous copies, where operands allow (True); or never (False).
        vec: stage 16 bytes at a time, where operands allow (True); or one element at a time (False), which also keeps
            large calls from rounding channels up to a multiple of 8.
        kernel: "portable", "halo" (for few channels) or "hopper" (compute capability 9.0); one that does not take the
            call, or fails on the GPU that is there, is an error. All other fields are the portable kernels': setting
            one chooses these.

    Raises:
        TypeError: a field is not an int (or str or bool, where it says so).
        ValueError: a field is not positive, not the multiple it must be, or names no kernel.
    """

    bm: int | None = None
    bn: int | None = None
    bk: int | None = None
    rb: int | None = None
    wm: int | None = None
    wn: int | None = None
    ksteps: int | None = None
    ksplit: int | None = None
    async_copy: bool | None = None
    vec: bool | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, str | None):
            raise TypeError(f"KernelConfig.kernel: got {self.kernel!r}, expected a str or None")
        if self.kernel is not None and self.kernel not in KERNELS:
            raise ValueError(
                f"KernelConfig.kernel: got {self.kernel!r}, expected one of {', '.join(map(repr, KERNELS))} or None"
            )
        for name, multiple in _MULTIPLES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"KernelConfig.{name}: got {value!r}, expected an int or None")
            if value < 1 or value % multiple:
                expected = "a positive int" if multiple == 1 else f"a positive multiple of {multiple}"
                raise ValueError(f"KernelConfig.{name}: got {value}, expected {expected}")
        for name in ("async_copy", "vec"):
            if not isinstance(getattr(self, name), (bool, type(None))):
                raise TypeError(f"KernelConfig.{name}: got {getattr(self, name)!r}, expected a bool or None")
        for part, whole in (("wm", "bm"), ("wn", "bn")):
            small, large = getattr(self, part), getattr(self, whole)
            if small is not None and large is not None and large % small:
                raise ValueError(
                    f"KernelConfig.{part}: got {small} with {whole}={large}, expected a divisor of {whole}"
                )
