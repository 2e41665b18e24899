"""Dense convolutions, pass by pass, beside `lax.conv_general_dilated`, cuDNN's best, and the floor.

`python -m benchmarks.dense_breakdown --quick`; the layers of the CIFAR-10 network and of ImageNet-sized ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import breakdown_run, shapes


def table(size: str) -> list[shapes.Dense]:
    """The shapes in a size, "cpu" or "gpu"."""
    return shapes.dense_shapes(size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result of ours is not the peer's."""
    options = breakdown_run.parse("dense_breakdown", __doc__, ["bfloat16"], arguments)
    return breakdown_run.main(options, "dense", table)


if __name__ == "__main__":
    sys.exit(main())
