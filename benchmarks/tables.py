"""All in one run: KNN and dense convolutions, pass by pass, beside their rivals and floors, hubs, the training step.

`python -m benchmarks.tables`; some four minutes on a GPU, and an interruption leaves what was done so far. The peers
are `x[:, indices]` with einsum and `lax.conv_general_dilated`; beside them stand the product of the already gathered
matrix and cuDNN's best.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import breakdown_run, cifar10_breakdown, dense_breakdown, knn_breakdown, shapes


def table(size: str) -> list[shapes.Shape]:
    """The shapes of all breakdowns in a size, "cpu" or "gpu"."""
    return [*dense_breakdown.table(size), *knn_breakdown.table(size)]


def _add_hubs_and_steps(options: argparse.Namespace, results: dict[str, Any]) -> None:
    knn_breakdown.add_hubs(options, results)
    cifar10_breakdown.add_steps(options, results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("tables", __doc__, ["bfloat16"], arguments)
    return breakdown_run.main(options, "tables", table, _add_hubs_and_steps)


if __name__ == "__main__":
    sys.exit(main())
