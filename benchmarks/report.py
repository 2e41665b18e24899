"""Results as tables on a screen, and the figures that sum a run up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

SLOW = 0.9  # a ratio below it counts as slower than the peer


def summarise(comparisons: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Geometric mean, worst and count below `SLOW` of the ratios (peer's time / ours), and what does not agree."""
    apart = [_place(entry) for entry in (*comparisons, *steps) if not entry["agrees"]]
    if not comparisons:
        return {"comparisons": 0, "disagreements": apart}
    worst = min(comparisons, key=lambda entry: entry["ratio"])
    return {
        "comparisons": len(comparisons),
        "geometric_mean": statistics.geometric_mean(entry["ratio"] for entry in comparisons),
        "cpu_geometric_mean": statistics.geometric_mean(entry["cpu_ratio"] for entry in comparisons),
        "worst": worst["ratio"],
        "worst_at": _place(worst),
        f"below_{SLOW}": sum(entry["ratio"] < SLOW for entry in comparisons),
        "fallbacks": sum(entry["ours"]["implementation"] == "xla" for entry in comparisons),
        "disagreements": apart,
    }


def _place(entry: dict[str, Any]) -> str:
    return " ".join(entry[key] for key in ("name", "pass", "dtype") if key in entry)


def number(value: float) -> str:
    """Three digits, or whole ones from 100 on."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def megabytes(count: int | None) -> str:
    """A count of bytes in megabytes; a dash where it is not known."""
    return "-" if count is None else number(count / 2**20)


def comparison_table(comparisons: Sequence[dict[str, Any]]) -> Table:
    """One row a comparison; times are minima. "cpu" is the ratio of processor seconds, blind to other programs."""
    table = Table(title="Ours against the peer (best of the rounds; ratio = peer's time / ours)", title_justify="left")
    table.add_column("shape", no_wrap=True)
    table.add_column("pass")
    table.add_column("dtype")
    device = any(entry["timed"] == "device" for entry in comparisons)
    headers = ["ours ms", "peer ms", "ratio", "paired", "cpu", "floor ms", "GFLOP/s"]
    headers += ["host ms", "peer host"] if device else []
    headers += ["temp MB", "peer temp", "resident MB", "peer resident"]
    for header in headers:
        table.add_column(header, justify="right")
    for entry in comparisons:
        ours, peer, timed = entry["ours"], entry["peer"], entry["timed"]
        host = [number(side["host"]["min_ms"]) for side in (ours, peer)] if device else []
        marks = ("" if entry["agrees"] else " WRONG") + ("" if ours["implementation"] == "compiled" else " (fallback)")
        ratio = number(entry["ratio"])
        table.add_row(
            entry["name"] + marks,
            entry["pass"],
            entry["dtype"],
            number(ours[timed]["min_ms"]),
            number(peer[timed]["min_ms"]),
            ratio if entry["ratio"] >= SLOW else f"[red]{ratio}[/red]",
            number(entry["paired_ratio"]),
            number(entry["cpu_ratio"]),
            number(entry["floor_ms"]),
            number(entry["gflops"]),
            *host,
            *(megabytes(side[key]) for key in ("temporary_bytes", "resident_bytes") for side in (ours, peer)),
        )
    return table


def check_table(checks: Sequence[dict[str, Any]]) -> Table:
    """One row a check: a figure and the limit that it has to keep."""
    table = Table(title="Checks", title_justify="left")
    table.add_column("case", justify="right")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("")
    for check in checks:
        measured, limit = (f"{number(check[key])} {check['unit']}" for key in ("value", "limit"))
        kept = "ok" if check["ok"] else "[red]ABOVE[/red]"
        table.add_row(str(check["case"]), check["what"], measured, limit, kept)
    return table


def step_table(steps: Sequence[dict[str, Any]]) -> Table:
    """One row a training step."""
    table = Table(title="Training step against the plain Flax twin", title_justify="left")
    table.add_column("model")
    table.add_column("dtype")
    for header in ("ours ms", "peer ms", "ratio", "paired"):
        table.add_column(header, justify="right")
    for step in steps:
        times = (number(step[side]["call"]["min_ms"]) for side in ("ours", "peer"))
        table.add_row(step["name"], step["dtype"], *times, number(step["ratio"]), number(step["paired_ratio"]))
    return table


def show(results: dict[str, Any], console: Console) -> None:
    """Print a result file's content: the machine, its ceilings, the tables, the summary."""
    device, versions, peaks = results["device"], results["versions"], results["peaks"]
    console.print(f"{device['kind']} on {device['cpu']}, {device['cores']} cores")
    console.print("; ".join(f"{name} module: {module}" for name, module in results["modules"].items()))
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    load = results["load"]["before"]
    if load > device["cores"] / 2:
        console.print(f"[red]other programs kept {load:.1f} of {device['cores']} cores busy: times are disturbed[/red]")
    rates = ", ".join(f"{dtype} {rate / 1e9:.0f} GFLOP/s" for dtype, rate in peaks["flops"].items())
    console.print(f"ceilings: {rates}, copy {peaks['bytes'] / 1e9:.1f} GB/s")
    if results["comparisons"]:
        console.print(comparison_table(results["comparisons"]))
    if results["checks"]:
        console.print(check_table(results["checks"]))
    if results["steps"]:
        console.print(step_table(results["steps"]))
    summary = results["summary"]
    if summary["comparisons"]:
        console.print(
            f"{summary['comparisons']} comparisons: geometric mean {summary['geometric_mean']:.2f}x "
            f"({summary['cpu_geometric_mean']:.2f}x by processor seconds), worst "
            f"{summary['worst']:.2f}x ({summary['worst_at']}), {summary[f'below_{SLOW}']} below {SLOW}x, "
            f"{summary['fallbacks']} by the fallback"
        )
    for place in summary["disagreements"]:
        console.print(f"[red]results differ: {place}[/red]")
