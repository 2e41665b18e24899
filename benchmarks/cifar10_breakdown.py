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


def convolution_ms(entries: Sequence[dict[str, Any]], side: str, dtype: str, layers: Sequence[str]) -> float | None:
    """Milliseconds of the device for a step's convolutions; None where some were not measured.

    The images need no gradient, so dinput of the first layer is not one of them.

    Args:
      entries: measured ones, of other shapes too.
      side: whose time.
      dtype: of the step.
      layers: names of the step's shapes, in order.
    """
    passes = [(name, pass_name) for name in layers for pass_name in shapes.PASSES]
    wanted = [key for key in passes if key != (layers[0], "dinput")]
    found = {
        (entry["name"], entry["pass"]): entry["sides"][side]["device"]["min_ms"]
        for entry in entries
        if entry["dtype"] == dtype and side in entry["sides"]
    }
    return sum(found[key] for key in wanted) if all(key in found for key in wanted) else None


def add_steps(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure the training steps into a breakdown's results, unless its shapes were picked by name."""
    settings = compare.Settings(rounds=results["settings"]["repeats"], budget_s=results["settings"]["budget_s"])
    if options.match:
        return
    results["steps"] = cifar10_step.run(options.dtypes, settings, quick=options.quick and results["size"] == "cpu")
    layers = shapes.cifar10_layers(results["size"])
    for step in results["steps"]:
        names = [layer.name for layer in layers]
        spent = {side: convolution_ms(results["entries"], side, step["dtype"], names) for side in ("ours", "peer")}
        if step["batch"] == layers[0].batch and None not in spent.values():
            step["convolutions_ms"] = spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("cifar10_breakdown", __doc__, ["bfloat16", "float16"], arguments)
    return breakdown_run.main(options, "CIFAR-10", shapes.cifar10_layers, add_steps)


if __name__ == "__main__":
    sys.exit(main())
