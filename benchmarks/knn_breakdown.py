"""KNN convolutions, pass by pass, beside the peer, the product of the gathered matrix, and the floor.

`python -m benchmarks.knn_breakdown --quick`; shapes of large batches, point clouds of batch 1, stems, small batches.
All sides take turns on operands of their own, so that large ones come from memory: gathered matrices too.
First of all, dinput over tables with hubs, beside tables without.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import breakdown_run, compare, field_cases, shapes


def table(size: str) -> list[shapes.Knn]:
    """The shapes in a size, "cpu" or "gpu"."""
    return [*shapes.knn_shapes(size), *shapes.small_batch_shapes()]


def add_hubs(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure dinput over tables with hubs into a breakdown's results, if its passes and names are asked for."""
    if "dinput" not in options.passes:
        return
    repeats, budget_s = (results["settings"][name] for name in ("repeats", "budget_s"))
    settings = compare.Settings(rounds=repeats, budget_s=budget_s, implementation=options.implementation)
    results["checks"].extend(field_cases.hub_rows(options.dtypes, settings, options.match))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("knn_breakdown", __doc__, ["bfloat16"], arguments)
    return breakdown_run.main(options, "KNN", table, add_hubs)


if __name__ == "__main__":
    sys.exit(main())
