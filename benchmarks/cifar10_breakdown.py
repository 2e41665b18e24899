"""The CIFAR-10 network: each convolution, pass by pass, beside `lax.conv_general_dilated`, cuDNN's best and the floor;
then the whole training step beside its plain Flax twin.

`python -m benchmarks.cifar10_breakdown --quick`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import breakdown_run, cifar10_step, compare, shapes


def convolution_ms(entries: Sequence[dict[str, Any]], side: str, dtype: str) -> float | None:
    """Milliseconds of the device for a step's convolutions; None where some were not measured.

    The images need no gradient, so dinput of the first layer is not one of them.
    """
    layers: dict[str, dict[str, float]] = {}
    for entry in entries:
        if entry["dtype"] == dtype and side in entry["sides"]:
            layers.setdefault(entry["name"], {})[entry["pass"]] = entry["sides"][side]["device"]["min_ms"]
    if len(layers) != cifar10_step.CONVOLUTIONS or any(len(passes) < 3 for passes in layers.values()):
        return None
    first = next(iter(layers.values()))
    return sum(sum(passes.values()) for passes in layers.values()) - first["dinput"]


def _steps(options: argparse.Namespace, results: dict[str, Any]) -> None:
    settings = compare.Settings(rounds=results["settings"]["repeats"], budget_s=results["settings"]["budget_s"])
    if options.match:
        return
    results["steps"] = cifar10_step.run(options.dtypes, settings, quick=options.quick and results["size"] == "cpu")
    for step in results["steps"]:
        spent = {side: convolution_ms(results["entries"], side, step["dtype"]) for side in ("ours", "peer")}
        layers_batch = results["entries"][0]["shape"]["batch"] if results["entries"] else None
        if step["batch"] == layers_batch and None not in spent.values():
            step["convolutions_ms"] = spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("cifar10_breakdown", __doc__, ["bfloat16", "float16"], arguments)
    return breakdown_run.main(options, "CIFAR-10", shapes.cifar10_layers, _steps)


if __name__ == "__main__":
    sys.exit(main())
