"""KNN convolutions, pass by pass, beside the peer, the product of the gathered matrix, and the floor.

`python -m benchmarks.knn_breakdown --quick`; shapes of large batches, point clouds of batch 1, stems, small batches.
All sides take turns on operands of their own, so that large ones come from memory: gathered matrices too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import breakdown_run, shapes


def table(size: str) -> list[shapes.Knn]:
    """The shapes in a size, "cpu" or "gpu"."""
    return [*shapes.knn_shapes(size), *shapes.small_batch_shapes()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("knn_breakdown", __doc__, ["bfloat16"], arguments)
    return breakdown_run.main(options, "KNN", table)


if __name__ == "__main__":
    sys.exit(main())
