"""Run the benchmarks: `python -m benchmarks.run --suite all --out benchmarks/results/<device>.json`."""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import gc
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import cifar10_step, compare, field_cases, machine, memory, operands, report, shapes

SCHEMA = 1
SUITES = ("dense", "knn", "cases", "step")
DTYPES = ("float32", "bfloat16", "float16")
_QUICK = compare.Settings(rounds=5, budget_s=0.3, sample_s=0.002)
# Fresh processes that measure memory side by side; their time is not measured.
_MEMORY_PROCESSES = 2


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""

    def several(choices: Sequence[str]) -> Any:
        def read(text: str) -> list[str]:
            chosen = list(choices) if text == "all" else text.split(",")
            for entry in chosen:
                if entry not in choices:
                    raise argparse.ArgumentTypeError(f"{entry!r} is none of {', '.join(choices)}, all")
            return chosen

        return read

    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    add = parser.add_argument
    add("--suite", type=several(SUITES), default="all", help="some of dense,knn,cases,step, or all")
    add("--dtypes", type=several(DTYPES), default=None, help="some of float32,bfloat16,float16, or all, the default")
    add("--passes", type=several(shapes.PASSES), default="all", help="some of forward,dinput,dweight, or all")
    add("--rounds", type=int, default=None, help="samples of each side, ours and the peer's in turns")
    add("--budget", type=float, default=None, help="seconds after which a comparison ends early")
    add("--resident", type=several(("none", *DTYPES)), default="bfloat16", help="dtypes whose resident memory is taken")
    add("--size", choices=("auto", "cpu", "gpu"), default="auto", help="which size of the shapes")
    add("--implementation", default="auto", help="of ours, as in conv2d")
    add("--match", default="", help="only shapes whose name contains this")
    add("--quick", action="store_true", help="every third shape, two dtypes, few rounds: two minutes on a CPU")
    add("--out", type=pathlib.Path, default=None, help="result file; by default benchmarks/results/<device>.json")
    options = parser.parse_args(arguments)
    if options.dtypes is None:
        options.dtypes = list(DTYPES[:2] if options.quick else DTYPES)
    return options


def chosen_shapes(suites: Sequence[str], size: str, quick: bool, match: str) -> list[shapes.Shape]:
    """The shapes of the chosen suites."""
    tables: dict[str, Callable[[str], Sequence[shapes.Shape]]] = {
        "dense": shapes.dense_shapes,
        "knn": shapes.knn_shapes,
    }
    found: list[shapes.Shape] = []
    for suite, table in tables.items():
        if suite in suites:
            entries = table(size)
            found += shapes.quick_shapes(entries) if quick else entries
    return [shape for shape in found if match in shape.name]


def add_resident(comparisons: Sequence[dict[str, Any]], implementation: str, progress: Progress) -> None:
    """Measure the resident memory of both sides of these comparisons, each in a fresh process."""
    jobs = [(entry, side) for entry in comparisons for side in compare.SIDES]
    task = progress.add_task("resident memory", total=len(jobs))

    def measure_one(job: tuple[dict[str, Any], str]) -> None:
        entry, side = job
        entry[side]["resident_bytes"] = memory.measure_in_fresh_process(
            shapes.from_json(entry["shape"]), entry["pass"], entry["dtype"], side, implementation=implementation
        )
        progress.advance(task)

    with concurrent.futures.ThreadPoolExecutor(_MEMORY_PROCESSES) as pool:
        try:
            list(pool.map(measure_one, jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def measure(results: dict[str, Any], options: argparse.Namespace, settings: compare.Settings, console: Console) -> None:
    """Fill in the comparisons, checks and steps that the options ask for, one after the other."""
    chosen = chosen_shapes(options.suite, results["size"], options.quick, options.match)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("comparisons", total=len(chosen) * len(options.dtypes) * len(options.passes))
        for shape in chosen:
            for dtype in options.dtypes:
                made = operands.make(shape, dtype)
                for pass_name in options.passes:
                    progress.update(task, description=f"{shape.name} {pass_name} {dtype}")
                    results["comparisons"].append(compare.compare(shape, pass_name, made, settings))
                    progress.advance(task)
                del made
                gc.collect()
            if not console.is_terminal:
                console.print(f"{shape.name} done")
        resident = [entry for entry in results["comparisons"] if entry["dtype"] in options.resident]
        add_resident(resident, options.implementation, progress)
        if "cases" in options.suite:
            results["checks"] = field_cases.run(options.dtypes, settings, quick=options.quick, progress=progress)
        if "step" in options.suite:
            results["steps"] = cifar10_step.run(options.dtypes, settings, quick=options.quick)


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure what the options ask for; the content of the result file. Interrupted, it holds what was done."""
    defaults = _QUICK if options.quick else compare.Settings()
    settings = defaults._replace(
        rounds=options.rounds or defaults.rounds,
        budget_s=defaults.budget_s if options.budget is None else options.budget,
        implementation=options.implementation,
    )
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **machine.describe(),
        "load": {"before": machine.load()},
        "size": machine.size() if options.size == "auto" else options.size,
        "quick": options.quick,
        "complete": False,
        "settings": settings._asdict(),
        "comparisons": [],
        "checks": [],
        "steps": [],
    }
    peaks_before = machine.peaks(options.dtypes)
    try:
        measure(results, options, settings, console)
        results["complete"] = True
    except KeyboardInterrupt:
        console.print("interrupted: here is what was done")
    results["load"]["after"] = machine.load()
    results["peaks"] = machine.highest(peaks_before, machine.peaks(options.dtypes))
    for entry in results["comparisons"]:
        work = entry["operations"], entry["moved_bytes"]
        entry["floor_ms"] = machine.floor_ms(*work, entry["dtype"], results["peaks"])
    results["summary"] = report.summarise(results["comparisons"], results["steps"])
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = parse(arguments)
    # The memory measurements run beside this process on the same device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    console = Console(width=None if sys.stdout.isatty() else 200)
    results = run(options, console)
    report.show(results, console)
    path = options.out or machine.result_path(results["device"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"written to {path}")
    return 1 if results["summary"]["disagreements"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and job managers interrupt with it
    sys.exit(main())
