"""A foveated sensor: log-polar points, dense in the middle of an image and sparse at its rim.

Points are laid out on a flat disk, the *cortex*, in hexagon-like rings of even spacing. The disk is then blown up
exponentially to the *retina*, the image plane:

    retina = direction · radius · (exp(strength · r) - 1) / (exp(strength) - 1),   r = |cortex| in [0, 1]

so that ring radii grow geometrically, as in a log-polar map, but stay regular at the centre. On the cortex, neighbours
are evenly spaced: that is where neighbour tables are built, with one rigid kernel for every place. The idea, a uniform
sensor manifold and neighbourhoods on it, is that of FOVI (Blauch, Alvarez, Konkle, arXiv:2602.03766).
"""

from __future__ import annotations

import numpy as np

import jax_knnconv as jkc

STRENGTH = 1.2


def cortex_points(rings: int) -> np.ndarray:
    """[1 + 3·rings·(rings + 1), 2] points of the unit disk: one at the centre and 6·i evenly on ring i."""
    points = [np.zeros((1, 2))]
    for ring in range(1, rings + 1):
        # Each ring is turned by half a step against the last, so that no spoke of points is left.
        angles = 2 * np.pi * (np.arange(6 * ring) + 0.5 * (ring % 2)) / (6 * ring)
        points.append(ring / rings * np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    return np.concatenate(points)


def to_retina(cortex: np.ndarray, radius: float, strength: float = STRENGTH) -> np.ndarray:
    """Where cortex points [N, 2] look: offsets [N, 2] from the image's centre, in pixels, up to `radius`."""
    r = np.linalg.norm(cortex, axis=-1, keepdims=True)
    direction = np.divide(cortex, r, out=np.zeros_like(cortex), where=r > 0)
    return direction * radius * np.expm1(strength * r) / np.expm1(strength)


def sample(images: np.ndarray, retina: np.ndarray) -> np.ndarray:
    """Bilinear values of images [B, H, W, C] at points [N, 2] = (row, column) off the centre: [B, N, C].

    Outside the image it is dark (0).
    """
    height, width = images.shape[1:3]
    place = retina + np.array([(height - 1) / 2, (width - 1) / 2])
    corner = np.floor(place).astype(int)
    fraction = place - corner
    values = np.zeros((images.shape[0], len(retina), images.shape[3]))
    for row_step in (0, 1):
        for column_step in (0, 1):
            row, column = corner[:, 0] + row_step, corner[:, 1] + column_step
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            share = np.where(row_step, fraction[:, 0], 1 - fraction[:, 0])
            share = share * np.where(column_step, fraction[:, 1], 1 - fraction[:, 1])
            pixels = images[:, row.clip(0, height - 1), column.clip(0, width - 1)]
            values += pixels * (share * inside)[:, None]
    return values.astype(np.float32)


def cortex_table(rings_in: int, rings_out: int, k: int) -> jkc.NeighborTable:
    """The k nearest of the input rings for each point of the output rings.

    A neighbour's weight slot is the nearest of seven kernel points, a centre and a hexagon one input spacing away.
    """
    kernel = cortex_points(1) / rings_in
    return jkc.knn_table(cortex_points(rings_in), cortex_points(rings_out), k=k, kernel_points=kernel)
