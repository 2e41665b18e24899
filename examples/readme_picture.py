"""Draws docs/images/neighbourhoods.png, the README's picture: one digit, its foveated samples, two neighbourhoods.

python examples/readme_picture.py [FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from digits_data import load_images
from digits_plots import PICTURED, draw_cortex, draw_retina

_FILE = Path(__file__).resolve().parent.parent / "docs/images/neighbourhoods.png"


def main(arguments: list[str] | None = None) -> None:
    """Write the picture."""
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("file", nargs="?", type=Path, default=_FILE, help="where to write it")
    file = parser.parse_args(arguments).file
    _, test = load_images()
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.9), layout="constrained")
    draw_retina(axes[0], test.x[PICTURED])
    draw_cortex(axes[1], test.x[PICTURED])
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
