"""Draws docs/images/neighbourhoods.png, the README's picture: one digit, its foveated samples, two neighbourhoods.

python examples/readme_picture.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from digits_data import load_images
from digits_plots import PICTURED, draw_cortex, draw_retina

_FILE = Path(__file__).resolve().parent.parent / "docs/images/neighbourhoods.png"


def main(path: Path = _FILE) -> None:
    """Write the picture."""
    _, test = load_images()
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.9), layout="constrained")
    draw_retina(axes[0], test.x[PICTURED])
    draw_cortex(axes[1], test.x[PICTURED])
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
