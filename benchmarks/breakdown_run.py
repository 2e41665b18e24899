"""What the breakdowns share as programs: their options, the result file, the tables on the screen."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

import jax_knnconv as jkc
from benchmarks import breakdown, breakdown_report, machine, shapes

SCHEMA = 1
DTYPES = ("bfloat16", "float16", "float32")
_QUICK = breakdown.Settings(repeats=5, budget_s=0.1, sample_s=0.002)
_FEW = 6  # a table of that length is quick enough
Extra = Callable[[argparse.Namespace, dict[str, Any]], None]


def _several(choices: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        chosen = [entry for entry in text.split(",") if entry]
        for entry in chosen:
            if entry not in choices:
                raise argparse.ArgumentTypeError(f"{entry!r} is none of {', '.join(choices)}")
        return chosen

    return read


def parse(
    program: str, description: str | None, dtypes: Sequence[str], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Read the command line of a breakdown of these dtypes, of which a quick run takes the first."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=description)
    add = parser.add_argument
    add(
        "--dtypes",
        type=_several(DTYPES),
        default=None,
        help=f"some of {','.join(DTYPES)}; by default {','.join(dtypes)}",
    )
    add("--passes", type=_several(shapes.PASSES), default=",".join(shapes.PASSES), help="some of them, by commas")
    add("--repeats", type=int, default=None, help="samples of each side, taken in turns")
    add("--match", default="", help="only shapes whose name contains this")
    add("--size", choices=("auto", "cpu", "gpu"), default="auto", help="which size of the shapes")
    add("--implementation", default="auto", help="of ours, as in conv2d")
    add("--kernels", type=_several(jkc.config.KERNELS), default="", help="to be forced, beside ours by shape")
    add("--quick", action="store_true", help="every third shape of a long table, one dtype, few repeats")
    add("--out", type=pathlib.Path, default=None, help="result file; by default in benchmarks/results")
    options = parser.parse_args(arguments)
    if options.dtypes is None:
        options.dtypes = list(dtypes[:1] if options.quick else dtypes)
    return options


def _settings(options: argparse.Namespace) -> breakdown.Settings:
    defaults = _QUICK if options.quick else breakdown.Settings()
    return defaults._replace(
        repeats=options.repeats or defaults.repeats,
        implementation=options.implementation,
        kernels=tuple(options.kernels),
    )


def main(
    options: argparse.Namespace, name: str, table: Callable[[str], Sequence[shapes.Shape]], extra: Extra | None = None
) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's.

    Args:
      options: of `parse`.
      name: of the breakdown, as in its result file's name.
      table: the shapes of a size, "cpu" or "gpu".
      extra: adds to the results what else the breakdown measures; it comes first, being short.
    """
    # PyTorch's process runs on the same device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and job managers interrupt with it
    console = Console(width=None if sys.stdout.isatty() else 220)
    settings = _settings(options)
    size = machine.size() if options.size == "auto" else options.size
    chosen: Sequence[shapes.Shape] = [shape for shape in table(size) if options.match in shape.name]
    if options.quick and len(chosen) > _FEW:
        chosen = shapes.quick_shapes(chosen)
    entries = [
        breakdown.Entry(shape, pass_name, dtype)
        for shape in chosen
        for dtype in options.dtypes
        for pass_name in options.passes
    ]
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "breakdown": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **machine.describe(),
        "size": size,
        "quick": options.quick,
        "complete": False,
        "settings": settings._asdict(),
        "entries": [],
        "checks": [],
        "steps": [],
    }
    peaks_before = machine.peaks(options.dtypes)
    try:
        if extra is not None:
            extra(options, results)
        breakdown.run(entries, settings, console.print, results["entries"])
        results["complete"] = True
    except KeyboardInterrupt:
        console.print("interrupted: here is what was done")
    results["peaks"] = machine.highest(peaks_before, machine.peaks(options.dtypes))
    breakdown.finish(results["entries"], results["peaks"])
    path = options.out or machine.result_path(results["device"], f"{name} breakdown")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    breakdown_report.show(results, console)
    console.print(f"written to {path}")
    return 0 if all(entry["agrees"] for entry in (*results["entries"], *results["steps"])) else 1
