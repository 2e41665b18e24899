"""Asks the CUDA module which kernel a handler's call gets: the rules are its launchers' own (lib/cuda/rules.cc)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from jax_knnconv._ffi import Backend
from jax_knnconv._primitive import group_sizes, is_absent
from jax_knnconv._specs import DenseSpec
from jax_knnconv._workspace import dinput_workspace, partial_sums

# Families of kernels that take some calls. The rules ask them in this order; the portable kernels take what is left.
SPECIAL_FAMILIES = ("hopper", "halo")

PASSES = tuple(f"{layer}_{name}" for layer in ("dense", "knn") for name in ("forward", "dinput", "dweight"))

# KiB of shared memory that a thread block may ask for, by compute capability.
_SHARED_KIB = {
    (7, 5): 64,
    (8, 0): 163,
    (8, 6): 99,
    (8, 7): 163,
    (8, 9): 99,
    (9, 0): 227,
    (10, 0): 227,
    (10, 3): 227,
    (12, 0): 99,
    (12, 1): 99,
}


class HandlerCall(NamedTuple):
    """A call of a handler, as its primitive holds it."""

    operation: str
    operands: Sequence[Any]  # their shapes and dtypes are looked at
    static: Mapping[str, Any]  # the primitive's parameters


class DeviceFigures(NamedTuple):
    """What rules look at of a GPU."""

    multiprocessors: int
    compute_capability: tuple[int, int]
    shared_bytes: int


def shared_bytes(compute_capability: tuple[int, int]) -> int | None:
    """Shared memory that a thread block may ask for, or None where it is not known."""
    kib = _SHARED_KIB.get(compute_capability)
    return None if kib is None else kib * 1024


def figures_of(device: Any) -> DeviceFigures | None:
    """A GPU's figures, or None where JAX does not tell them."""
    capability = getattr(device, "compute_capability", None)
    multiprocessors = getattr(device, "core_count", None)
    if capability is None or multiprocessors is None:
        return None
    major, _, minor = str(capability).partition(".")
    room = shared_bytes((int(major), int(minor)))
    return None if room is None else DeviceFigures(multiprocessors, (int(major), int(minor)), room)


def families(backend: Backend, calls: Sequence[HandlerCall], forced: Mapping[str, Any], device: Any) -> set[str]:
    """The families of kernels, of those that do not take every call, that a GPU's calls run on.

    All that might run where a size has no value yet, or none that the rules count with, or the device is not known.

    Raises:
        ValueError: the GPU has no kernel for what is forced, as far as that is known when a program is lowered.
    """
    if backend.module is None or not hasattr(backend.module, "choose_tap_gemm"):
        return set()
    figures, found = figures_of(device), set()
    for call in calls:
        if call.operation not in PASSES:
            continue
        if figures is None or not is_known(call):
            found |= _allowed(forced, families_here(backend, device))
            continue
        try:
            found.add(choose(backend.module, call, forced, figures)["kernel"])
        except ValueError:
            if forced:
                raise
            # Its launcher says so when it runs.
    return found & set(SPECIAL_FAMILIES)


def is_known(call: HandlerCall) -> bool:
    """Whether all sizes have values that the rules count with, and so has the window."""
    spec = call.static["spec"]
    window = (*spec.stride, *spec.padding, *spec.dilation) if isinstance(spec, DenseSpec) else ()
    sizes = [size for operand in call.operands for size in operand.shape]
    return all(isinstance(size, int) and abs(size) < 1 << 31 for size in (*sizes, *window, math.prod(spec.slot_dims)))


def _allowed(forced: Mapping[str, Any], here: Sequence[str]) -> set[str]:
    """The families that a call may run on whose sizes are not known."""
    wanted = forced.get("kernel")
    if wanted is None:
        return set(here)
    return set(here) - {"hopper"} if wanted == "wmma" else {wanted}


def families_here(backend: Backend, device: Any) -> tuple[str, ...]:
    """The families of kernels that a module holds for a device besides those that take every call."""
    if not hasattr(backend.module, "choose_tap_gemm"):
        return ()
    hopper = "hopper" in backend.implementations and str(getattr(device, "compute_capability", "")) == "9.0"
    return SPECIAL_FAMILIES if hopper else ("halo",)


def partial_slices(
    module: ModuleType | None, calls: Sequence[HandlerCall], forced: Mapping[str, Any], devices: Sequence[Any]
) -> int | None:
    """Slices of partial sums that a weight gradient among the calls needs on any of these GPUs; None if not known.

    With so many it runs as it does with more (`_workspace.partial_sums`), to the last bit.
    """
    figures = [found for found in map(figures_of, devices) if found is not None]
    gradients = [call for call in calls if call.operation.endswith("_dweight")]
    if module is None or not gradients or not 0 < len(figures) == len(devices):
        return None
    (gradient,) = gradients
    if not is_known(gradient):
        return None
    try:
        return max(choose(module, gradient, forced, gpu)["partial_slices"] for gpu in figures)
    except ValueError:  # the call will say so
        return None


def choose(module: ModuleType, call: HandlerCall, forced: Mapping[str, Any], device: DeviceFigures) -> dict[str, Any]:
    """The kernel of one handler call: its name and, of the portable kernels, rows, columns and staging of the tile.

    Of a weight gradient also the slices of partial sums that it needs.

    Args:
        module: the CUDA module.
        call: of one of `PASSES`, its operands' sizes ints.
        forced: the attributes that force a choice (`_kernel_choice.attributes`).
        device: the GPU.

    Raises:
        ValueError: no kernel can do what is forced.
    """
    major, minor = device.compute_capability
    tile = tuple(int(size) for size in forced.get("tile", (-1, -1, -1)))
    asked = {
        "device": (device.multiprocessors, 10 * major + minor, device.shared_bytes),
        "wanted": (forced.get("kernel", ""), tile),
    }
    try:
        if call.operation.endswith("_dweight"):
            slices = int(forced.get("ksplit", -1))
            return module.choose_dweight(**asked, slices=slices, **_dweight_sizes(call.operands, call.static))
        return module.choose_tap_gemm(**asked, **_tap_gemm_sizes(*call))
    except ValueError as unmet:
        raise ValueError(
            f"KernelConfig: got {_fields(forced)}, which no kernel does on {device.multiprocessors} multiprocessors of "
            f"compute capability {major}.{minor} with {device.shared_bytes} bytes of shared memory a block; expected: "
            f"{unmet}"
        ) from None


def _fields(forced: Mapping[str, Any]) -> str:
    """The fields of a config that attributes come from."""
    rows, columns, _ = forced.get("tile", (-1, -1, -1))
    given = {"kernel": forced.get("kernel"), "bm": rows, "bn": columns, "ksplit": forced.get("ksplit")}
    told = [f"{name}={value}" for name, value in given.items() if value not in (None, -1)]
    return ", ".join(told) or "no config"


def _window(spec: Any, source: tuple[int, ...], out: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding, dilation, size of the source and of the result; zeros for a table."""
    if not isinstance(spec, DenseSpec):
        return ((0, 0),) * 6
    return spec.slot_dims, spec.stride, spec.padding, spec.dilation, source, out


def _groups_of(operand: Any, rank: int) -> tuple[int, ...]:
    """An operand's group dimensions, all shared where it is not there."""
    return (1,) * rank if operand is None or is_absent(operand) else operand.shape[:rank]


def _tap_gemm_sizes(operation: str, operands: Sequence[Any], static: Mapping[str, Any]) -> dict[str, Any]:
    """A `TapGemm` (lib/gpu/tap_gemm.h) as far as rules look at it."""
    spec, rank, forward = static["spec"], static["group_rank"], operation.endswith("_forward")
    source, weight, *rest = operands
    table = rest[1:] if forward else rest
    rows_in, rows_out = (spec.input_dims, spec.output_dims) if forward else (spec.output_dims, spec.input_dims)
    bias = rest[0] if forward else None
    if isinstance(spec, DenseSpec):
        taps, in_order = "window", (source, weight, bias, None, None, None)
    elif forward:
        taps, in_order = "columns" if is_absent(table[1]) else "rows", (source, weight, bias, *table, None)
    else:
        offsets, rows, slots = table
        taps, in_order = "sources", (source, weight, bias, rows, slots, offsets)
    return {
        "taps": taps,
        "transposed": not forward,
        "types": (source.dtype.name, weight.dtype.name, static["out_dtype"].name),
        "groups": group_sizes(rank, operands),
        "operand_groups": [_groups_of(operand, rank) for operand in in_order],
        "batch": math.prod(source.shape[rank : source.ndim - len(rows_in) - 1]),
        "nodes": math.prod(rows_out),
        "source_rows": math.prod(rows_in),
        "depth": weight.shape[-2 if forward else -1],
        "columns": weight.shape[-1 if forward else -2],
        "slots": math.prod(spec.slot_dims),
        "neighbours": table[0].shape[-1] if taps in ("columns", "rows") else 0,
        "source_taps": table[1].shape[-1] if taps == "sources" else 0,
        "workspace_elements": _dinput_room(source, weight, table, rank) if taps == "sources" else 0,
        "window": _window(spec, rows_in, rows_out),
    }


def _dinput_room(g: Any, weight: Any, source_order: Sequence[Any], rank: int) -> int:
    """Elements of workspace that a dinput over a table gets."""
    return math.prod(dinput_workspace(g, weight, *source_order, rank=rank, platform="cuda", fixed=2).shape)


def _dweight_sizes(operands: Sequence[Any], static: Mapping[str, Any]) -> dict[str, Any]:
    """A `Dweight` (lib/gpu/dweight.h) and its taps as far as rules look at them."""
    spec, groups = static["spec"], static["groups"]
    x, g, *table = operands
    channels, columns, slots = x.shape[-1], g.shape[-1], math.prod(spec.slot_dims)
    dense = isinstance(spec, DenseSpec)
    rank = len(groups)
    sizes = group_sizes(rank, operands)
    most_slices, _ = partial_sums(slots * channels * columns, columns, groups, platform="cuda").shape
    return {
        "taps": "window" if dense else "columns" if is_absent(table[1]) else "slots",
        "types": (x.dtype.name, g.dtype.name, static["out_dtype"].name),
        "groups": tuple(groups),
        "members": [1 if size == of_result else size for size, of_result in zip(sizes, groups, strict=True)],
        "operand_groups": [_groups_of(operand, rank) for operand in (x, g, *((None, None) if dense else table[:2]))],
        "batch": math.prod(x.shape[rank : x.ndim - len(spec.input_dims) - 1]),
        "slots": slots,
        "channels": channels,
        "columns": columns,
        "sources": 0 if dense else spec.input_dims[0],
        "outputs": 0 if dense else spec.output_dims[0],
        "neighbours": 0 if dense else table[0].shape[-1],
        "has_bias": static["with_bias"],
        "zero_empty_rows": not dense and spec.zero_empty_rows,
        "partial_slices": most_slices,
        "window": _window(spec, spec.input_dims, spec.output_dims),
    }
