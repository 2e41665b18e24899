"""The icosphere: a nearly uniform mesh of the sphere, as global weather models use."""

from __future__ import annotations

import numpy as np


def icosphere(level: int) -> tuple[np.ndarray, np.ndarray]:
    """An icosahedron whose triangles are split in four `level` times.

    Returns:
        vertices: [10 * 4**level + 2, 3] on the unit sphere, those of coarser levels first.
        triangles: [20 * 4**level, 3], the numbers of their corners.
    """
    golden = (1 + 5**0.5) / 2
    corners = [(0, a, b) for a in (-1, 1) for b in (-golden, golden)]
    vertices = np.array([np.roll(corner, shift) for corner in corners for shift in range(3)])
    near = np.isclose(np.linalg.norm(vertices[:, None] - vertices, axis=-1), 2)
    triangles = np.array(
        [(a, b, c) for a in range(12) for b in range(a) for c in range(b) if near[[a, a, b], [b, c, c]].all()]
    )
    for _ in range(level):
        edges = np.sort(triangles[:, [[0, 1], [1, 2], [2, 0]]])
        edges, numbers = np.unique(edges.reshape(-1, 2), axis=0, return_inverse=True)
        a, b, c = triangles.T
        ab, bc, ca = len(vertices) + numbers.reshape(-1, 3).T
        vertices = np.concatenate([vertices, vertices[edges].mean(axis=1)])
        triangles = np.concatenate([np.stack(t, axis=1) for t in ((a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca))])
    return vertices / np.linalg.norm(vertices, axis=1, keepdims=True), triangles


def neighbours(triangles: np.ndarray, num_vertices: int) -> np.ndarray:
    """[N, 7]: every vertex, its neighbours in ascending order, and one hole, -1, at the twelve that have five."""
    edges = triangles[:, [[0, 1], [1, 0], [1, 2], [2, 1], [2, 0], [0, 2]]].reshape(-1, 2)
    edges = np.unique(edges, axis=0)
    place = np.arange(len(edges)) - np.searchsorted(edges[:, 0], edges[:, 0])
    table = np.full((num_vertices, 7), -1)
    table[:, 0] = np.arange(num_vertices)
    table[edges[:, 0], 1 + place] = edges[:, 1]
    return table
