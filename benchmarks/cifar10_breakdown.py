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


def add_steps(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure the training steps into a breakdown's results, unless its shapes were picked by name."""
    if options.match:
        return
    settings = compare.Settings(rounds=results["settings"]["repeats"], budget_s=results["settings"]["budget_s"])
    results["steps"] = cifar10_step.run(options.dtypes, settings, quick=options.quick and results["size"] == "cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("cifar10_breakdown", __doc__, ["bfloat16", "float16"], arguments)
    return breakdown_run.main(options, "CIFAR-10", shapes.cifar10_layers, add_steps)


if __name__ == "__main__":
    sys.exit(main())
