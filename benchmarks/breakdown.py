"""Each pass of each shape beside its rivals and its floor: time of the device and of the host, and temporary memory.

Rivals: the peer; for KNN the matrix product of the already gathered matrix; for dense convolutions cuDNN's best, where
PyTorch is installed. Kernels of ours can be forced to stand beside the one that shapes choose.

Calls of every side take turns on operands of their own, which together take as much memory: those of a large shape come
from memory for all sides, those of a small one from the cache. Gathered matrices are larger than what they are gathered
from, and so are fewer. cuDNN's calls are replayed from a CUDA graph, those of the other sides run in one executable.

Programs of several entries are compiled side by side, and then measured one at a time.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import compare, cudnn, harness, head_start, machine, memory, operands, peers, shapes

_LONG_S = 3e-3  # beside a call of that length its start is nothing
_TFLOP = 1e12
# XLA times the algorithms of convolutions and products as it compiles them, which a busy host disturbs.
_COMPILERS = max(1, (os.cpu_count() or 1) // 3)
_COMPILED_TOGETHER = 18  # entries


class Settings(NamedTuple):
    """What is measured, and for how long."""

    repeats: int = 15
    budget_s: float = 0.4  # for the repeats of one entry
    sample_s: float = 0.006
    implementation: str = "auto"
    kernels: tuple[str, ...] = ()  # forced, beside ours


class Entry(NamedTuple):
    """One line of a breakdown."""

    shape: shapes.Shape
    pass_name: str
    dtype: str


class Side(NamedTuple):
    """A function of operands that `arrange` makes of (x, weight, g, neighbours), and how it is called."""

    function: Callable[..., jax.Array]
    arrange: Callable[..., tuple[Any, ...]] | None
    theirs: bool  # takes the index matrix instead of the table
    sets: int
    calls: int  # of one executable, some on the same set
    options: dict[str, Any] | None = None  # of XLA's


class Programs(NamedTuple):
    """A side's executables; `together` makes a call on each set and exists where a device works apart from the host."""

    arrange: Callable[..., tuple[Any, ...]] | None
    one: Any
    together: Any


def sides_of(entry: Entry, settings: Settings) -> dict[str, Side]:
    """By name: "ours", "peer", "gemm" for KNN, and each forced kernel."""
    shape, name = entry.shape, entry.pass_name
    itemsize = jnp.dtype(entry.dtype).itemsize
    sets, calls = operands.set_count(shape, itemsize), operands.call_count(shape, itemsize)

    def ours(kernel: str | None = None) -> Side:
        return Side(peers.one_pass(peers.ours(shape, settings.implementation, kernel), name), None, False, sets, calls)

    # A gather and a product take long enough, to compile above all.
    peer_calls = sets if isinstance(shape, shapes.Knn) else calls
    sides = {"ours": ours(), "peer": Side(peers.one_pass(peers.peer(shape), name), None, True, sets, peer_calls)}
    if isinstance(shape, shapes.Knn):
        product = peers.gathered_product(shape, name)
        width = shape.outputs if name == "dinput" else shape.channels
        matrix = shape.batch * shape.taps * width * itemsize
        matrices = max(2, min(sets, sets * shapes.moved_bytes(shape, itemsize) // matrix))
        sides["gemm"] = Side(product.multiply, product.arrange, True, matrices, calls, _library_products())
    return sides | {kernel: ours(kernel) for kernel in settings.kernels}


def _library_products() -> dict[str, Any] | None:
    """The options by which XLA takes the vendor's library for products, instead of kernels that it makes itself."""
    return None if jax.default_backend() == "cpu" else {"xla_gpu_enable_triton_gemm": False}


def _abstract(values: Any) -> Any:
    return jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), values)


def compile_side(entry: Entry, side: Side) -> Programs | str:
    """Compile for operands that need not exist yet; what went wrong where a rival cannot be compiled."""
    table, indices = operands.neighbours(entry.shape)
    arguments: tuple[Any, ...] = (
        *operands.abstract(entry.shape, entry.dtype),
        _abstract(indices if side.theirs else table),
    )
    try:
        arrange = None
        if side.arrange is not None:
            arrange = compare.compile_for(side.arrange, arguments)
            arguments = jax.eval_shape(side.arrange, *arguments)
        one = compare.compile_for(side.function, arguments, side.options)
        together = None
        if jax.default_backend() != "cpu":
            together = compare.compile_for(harness.together(side.function), [arguments] * side.calls, side.options)
        return Programs(arrange, one, together)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return str(error)


def compile_all(entries: Sequence[Entry], settings: Settings) -> dict[tuple[Entry, str], Programs | str]:
    """Compile all sides of all entries, some at a time."""
    jobs = {(entry, name): side for entry in entries for name, side in sides_of(entry, settings).items()}
    with concurrent.futures.ThreadPoolExecutor(_COMPILERS) as pool:
        done = {key: pool.submit(compile_side, key[0], side) for key, side in jobs.items()}
        try:
            return {key: future.result() for key, future in done.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Prepared(NamedTuple):
    samplers: dict[str, harness.Sampler]  # "device", "host" and perhaps "loop", or "device" alone
    result: jax.Array
    record: dict[str, Any]


def _prepare(
    programs: Programs, sets: Sequence[tuple[Any, ...]], calls: int, sample_s: float, *, in_loop: bool
) -> _Prepared:
    """Run once, and choose how to time by how long a call takes."""
    if programs.arrange is not None:
        sets = [programs.arrange(*entry) for entry in sets]
    result = jax.block_until_ready(programs.one(*sets[0]))
    whole = harness.WallSampler(programs.one, sets, sample_s=sample_s)
    samplers: dict[str, harness.Sampler] = {"device": whole}
    if programs.together is not None and whole.seconds < _LONG_S:
        run, called = programs.together, [sets[i % len(sets)] for i in range(calls)]
        samplers = {
            "device": harness.queued_sampler(run, called, sample_s=sample_s, ahead=head_start.for_device()),
            "host": harness.host_sampler(programs.one, sets),
        }
        if in_loop:
            samplers["loop"] = harness.queued_sampler(run, called, sample_s=sample_s, differences=True)
    record = {
        "temporary_bytes": memory.temporary_bytes(programs.one),
        "implementation": compare.implementation_of(programs.one),
    }
    return _Prepared(samplers, result, record)


def measure(entry: Entry, made: operands.Operands, programs: dict[str, Programs | str], settings: Settings) -> Any:
    """One entry of "entries" in the result file: times of each side, and the ratios of the others' to ours.

    Args:
      entry: what is measured.
      made: operands of its shape.
      programs: of its sides, compiled.
      settings: repeats and budget.
    """
    sides = sides_of(entry, settings)
    prepared: dict[str, _Prepared] = {}
    failures = {name: found for name, found in programs.items() if isinstance(found, str)}
    for name, found in programs.items():
        if isinstance(found, str):
            continue
        neighbours = made.peer if sides[name].theirs else made.ours
        sets = [(*operand_set, neighbours) for operand_set in made.sets[: sides[name].sets]]
        try:
            in_loop = name in ("ours", "peer")  # what people run
            prepared[name] = _prepare(found, sets, sides[name].calls, settings.sample_s, in_loop=in_loop)
        except jax.errors.JaxRuntimeError as error:  # a forced kernel that does not take the call, or no memory
            failures[name] = str(error)
    samples = harness.interleave(
        {(name, kind): sampler for name, side in prepared.items() for kind, sampler in side.samplers.items()},
        rounds=settings.repeats,
        budget_s=settings.budget_s,
        least_rounds=3,
    )
    times = {
        name: {kind: harness.milliseconds(samples[name, kind]) for kind in side.samplers} | side.record
        for name, side in prepared.items()
    }
    work, itemsize = shapes.operations(entry.shape), jnp.dtype(entry.dtype).itemsize
    record = {
        "name": entry.shape.name,
        "shape": shapes.to_json(entry.shape),
        "pass": entry.pass_name,
        "dtype": entry.dtype,
        "sides": times,
        "failures": {name: text.splitlines()[0] for name, text in failures.items()},
        "operations": work,
        "moved_bytes": shapes.moved_bytes(entry.shape, itemsize),
        "gathered_bytes": shapes.gathered_bytes(entry.shape, itemsize),
    }
    if "ours" not in prepared:
        return record | {"agrees": False}
    checked = {name: side.result for name, side in prepared.items() if name not in ("peer", "gemm")}
    reference = np.asarray(prepared["peer" if "peer" in prepared else "ours"].result)
    apart = {name: compare.difference(result, reference) for name, result in checked.items()}
    return record | {
        "tflops": work / times["ours"]["device"]["median_ms"] * 1e3 / _TFLOP,
        "difference": apart,
        "agrees": "peer" in prepared and max(apart.values()) <= compare.TOLERANCE[entry.dtype],
    }


def finish(records: Iterable[dict[str, Any]], ceilings: dict[str, Any]) -> None:
    """Add what needs every side and the ceilings: ratios of the others' times to ours, the floor, and ours over it.

    A side whose time is not positive counts as failed: it is a difference of samples, which noise of the host can hide.
    """
    for record in records:
        record["floor_ms"] = machine.floor_ms(record["operations"], record["moved_bytes"], record["dtype"], ceilings)
        for name, side in list(record["sides"].items()):
            if side["device"]["median_ms"] <= 0:
                record["failures"][name] = f"noise hides its time: {side['device']['median_ms']:.3g} ms"
                del record["sides"][name]
        if "ours" not in record["sides"]:
            record.pop("tflops", None)
            continue
        times = {name: side["device"]["median_ms"] for name, side in record["sides"].items()}
        record["ratios"] = {name: time_ms / times["ours"] for name, time_ms in times.items() if name != "ours"}
        record["gap"] = times["ours"] / record["floor_ms"]


def run(
    entries: Sequence[Entry], settings: Settings, tell: Callable[[str], None], records: list[dict[str, Any]]
) -> None:
    """Measure all entries into `records`, one after the other, which an interruption leaves as far as they came."""
    start = time.perf_counter()
    try:
        theirs = cudnn.measure(entries, settings.repeats)
        tell(f"cuDNN: {len(theirs)} entries in {time.perf_counter() - start:.0f} s")
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        theirs = {}
        tell(f"cuDNN was not measured: {error}")
    made, made_for = None, None
    for first in range(0, len(entries), _COMPILED_TOGETHER):
        start = time.perf_counter()
        compiled = compile_all(entries[first : first + _COMPILED_TOGETHER], settings)
        between = time.perf_counter()
        for entry in entries[first : first + _COMPILED_TOGETHER]:
            if made is None or made_for != (entry.shape, entry.dtype):
                made = None  # before the next ones take their memory
                made, made_for = operands.make(entry.shape, entry.dtype), (entry.shape, entry.dtype)
            programs = {name: found for (key, name), found in compiled.items() if key == entry}
            record = measure(entry, made, programs, settings)
            if entry in theirs:
                record["sides"]["cudnn"] = {"device": harness.milliseconds(theirs[entry])}
            records.append(record)
        spent = f"compiled in {between - start:.0f} s, measured in {time.perf_counter() - between:.0f} s"
        tell(f"{len(records)} of {len(entries)} entries: {spent}")
