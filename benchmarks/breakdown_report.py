"""A breakdown's tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report

_RIVALS = ("peer", "gemm", "cudnn")
# Samples of the device alone scatter to both sides; other load only adds to the rest.
_STATISTICS = {"device": "median_ms", "loop": "median_ms"}


def others(records: Sequence[dict[str, Any]]) -> list[str]:
    """The sides beside ours: rivals first, then forced kernels, as far as any entry has them."""
    found = {name: None for record in records for name in (*record["sides"], *record["failures"]) if name != "ours"}
    return [*(name for name in _RIVALS if name in found), *(name for name in found if name not in _RIVALS)]


def _of_kind(side: dict[str, Any], kind: str) -> float:
    return side[kind][_STATISTICS.get(kind, "min_ms")]


def _side(record: dict[str, Any], name: str, kind: str = "device") -> str:
    side = record["sides"].get(name)
    if side is None:
        return "none" if name in record["failures"] else "-"
    return report.number(_of_kind(side, kind)) if kind in side else "-"


def entry_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row an entry: the device's time of each side, with "x" how many times ours, and the gap to the floor.

    Then a call's time among many of one executable, started in a loop, and the host's until a single call returns.
    """
    title = "Milliseconds of the device, median of the repeats; x = that side's time / ours, gap = ours / floor"
    table = Table(title=title, title_justify="left")
    table.add_column("shape", no_wrap=True)
    table.add_column("pass", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    names = others(records)
    headers = ["ours", "TFLOP/s", *(header for name in names for header in (name, "x")), "floor", "gap"]
    for header in (*headers, "loop", "peer loop", "host", "peer host", "temp MB", "peer temp"):
        table.add_column(header, justify="right")
    for record in records:
        sides, ratios = record["sides"], record.get("ratios", {})
        fallback = sides.get("ours", {}).get("implementation") == "xla"
        beside = []
        for name in names:
            ratio = ratios.get(name)
            text = "-" if ratio is None else report.number(ratio)
            slow = name in _RIVALS and ratio is not None and ratio < 1
            beside += [_side(record, name), f"[red]{text}[/red]" if slow else text]
        table.add_row(
            record["name"] + ("" if record["agrees"] else " WRONG") + (" (fallback)" if fallback else ""),
            record["pass"],
            record["dtype"],
            _side(record, "ours"),
            report.number(record["tflops"]) if "tflops" in record else "-",
            *beside,
            report.number(record["floor_ms"]),
            report.number(record["gap"]) if "gap" in record else "-",
            *(_side(record, side, kind) for kind in ("loop", "host") for side in ("ours", "peer")),
            *(report.megabytes(sides.get(name, {}).get("temporary_bytes")) for name in ("ours", "peer")),
        )
    return table


def step_table(steps: Sequence[dict[str, Any]]) -> Table:
    """One row a training step and clock, and the parts of the device's time."""
    table = Table(title="Training step against the plain Flax twin, milliseconds", title_justify="left")
    for header in ("model", "dtype", "time"):
        table.add_column(header)
    for header in ("ours", "peer", "ratio"):
        table.add_column(header, justify="right")
    for step in steps:
        kinds = [kind for kind in ("device", "loop", "call", "host") if kind in step["ours"]]
        rows = {kind: [_of_kind(step[side], kind) for side in ("ours", "peer")] for kind in kinds}
        rows |= {kind: [step[side]["kernels"][kind] for side in ("ours", "peer")] for kind in step["ours"]["kernels"]}
        for kind, (ours, peer) in rows.items():
            times = (report.number(ours), report.number(peer), report.number(peer / ours) if ours else "-")
            table.add_row(step["name"], step["dtype"], kind, *times)
    return table


def summary(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line a rival and pass: the geometric mean of its times over ours, and the worst."""
    lines = []
    for name in (name for name in others(records) if name in _RIVALS):
        for pass_name in dict.fromkeys(record["pass"] for record in records):
            found = [
                (record["ratios"][name], record["name"], record["dtype"])
                for record in records
                if record["pass"] == pass_name and name in record.get("ratios", {})
            ]
            if found:
                mean = statistics.geometric_mean(ratio for ratio, _, _ in found)
                worst, shape, dtype = min(found)
                lines.append(f"{name} / ours, {pass_name}: mean {mean:.2f}, worst {worst:.2f} ({shape} {dtype})")
    return lines


def show(results: dict[str, Any], console: Console) -> None:
    """Print a result file's content."""
    device, versions, peaks = results["device"], results["versions"], results["peaks"]
    console.print(f"{device['kind']} on {device['cpu']}, {device['cores']} cores")
    console.print("; ".join(f"{name} module: {module}" for name, module in results["modules"].items()))
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    rates = ", ".join(f"{dtype} {rate / 1e12:.3g} TFLOP/s" for dtype, rate in peaks["flops"].items())
    console.print(f"ceilings: {rates}, copy {peaks['bytes'] / 1e9:.1f} GB/s")
    for kind in dict.fromkeys(record["shape"]["kind"] for record in results["entries"]):
        console.print(entry_table([record for record in results["entries"] if record["shape"]["kind"] == kind]))
    if results["checks"]:
        console.print(report.check_table(results["checks"]))
    if results["steps"]:
        console.print(step_table(results["steps"]))
    for line in summary(results["entries"]):
        console.print(line)
    for record in results["entries"]:
        for name, text in record["failures"].items():
            console.print(f"{record['name']} {record['pass']} {record['dtype']}: {name} failed: {text}", markup=False)
