"""docs/recipes.md: its blocks run, shapes are what its comments say, and results are what its words say."""

from __future__ import annotations

import ast
import json
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_knnconv as jkc

TEXT = (pathlib.Path(__file__).parents[1] / "docs/recipes.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHAPE = re.compile(r"# .*?(\[[\d, ]+\])$")


def run(code, namespace):
    """Run statements one by one. An assignment whose line ends in a shape has made an array of it."""
    lines, shapes = code.splitlines(), 0
    for statement in ast.parse(code).body:
        exec(compile(ast.Module([statement], []), "recipes.md", "exec"), namespace)
        shape = SHAPE.search(lines[statement.end_lineno - 1])
        if shape and isinstance(statement, ast.Assign):
            name = statement.targets[0].id
            assert list(namespace[name].shape) == json.loads(shape[1]), lines[statement.end_lineno - 1]
            shapes += 1
    assert shapes == len(re.findall(r"# .*\[\d[\d, ]*\]$", code, re.MULTILINE))


@pytest.fixture(scope="module")
def names():
    """The names after each section; sections run in order, in one namespace."""
    namespace, after = {}, {}
    for code in BLOCK.findall(TEXT[: TEXT.index("\n## ")]):
        run(code, namespace)
    for title, section in SECTIONS.items():
        for code in BLOCK.findall(section):
            run(code, namespace)
        after[title] = dict(namespace)
    return after


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_means_of_clouds(names):
    found = names["Clouds of different sizes"]
    close(found["means"], np.full((3, 32), 16 * 8))


def test_graph_convolution_is_that_of_the_normalised_adjacency_matrix(names):
    found = names["Graphs and sparse kernels"]
    path = np.eye(4, k=1) + np.eye(4, k=-1)
    norm = 1 / np.sqrt(path.sum(1))
    close(jkc.knn_conv(np.arange(4.0)[:, None], np.ones((1, 1, 1)), found["graph"])[:, 0], path @ np.arange(4))
    close(found["h"], 8 * path.sum(1)[:, None] * np.ones(16))
    close(found["scale"][:, 0], norm)


def test_a_sparse_matrix_sums_what_its_rows_name(names):
    close(names["Graphs and sparse kernels"]["sums"], [[1], [2], [1], [0]])


def test_a_grid_that_closes_on_itself_is_a_dense_convolution_of_a_wrapped_image(names):
    table = names["Spheres and rings"]["table"]
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((1, 32, 64, 2)), rng.standard_normal((3, 3, 2, 3))
    wrapped = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)), mode="wrap")
    window = {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1)}
    want = oracle.dense_forward(wrapped, weight, **window, output_size=(32, 64))
    close(jkc.knn_conv(x.reshape(1, -1, 2), weight.reshape(9, 2, 3), table).reshape(want.shape), want)


def test_transposed_convolution(names):
    found = names["Down, up, and pooling"]
    want = oracle.knn_dinput(found["small"], np.ones((16, 8, 32)), found["down"].indices, num_inputs=1000)
    np.testing.assert_allclose(found["transposed"], want, rtol=1e-5, atol=1e-2)


def test_groups_of_channels(names):
    found = names["Groups of channels, other ranks"]
    x, weight = found["groups"], found["weight"]
    for group in range(4):
        want = oracle.knn_forward(x[:, :, group], weight[:, group], found["down"].indices)
        np.testing.assert_allclose(found["grouped"][:, :, group], want, rtol=1e-4, atol=1e-4)


def test_neighbours_inside_jit_are_those_of_the_builder(names):
    found = names["Tables and jit"]
    want = jkc.knn_conv(found["x"], jnp.ones((8, 8, 16)), jkc.knn_table(found["points"], k=8))
    np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-4)
