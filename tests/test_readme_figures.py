"""The README's tables of times are those of the result that it links."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULT = json.loads((ROOT / "benchmarks/results/nvidia-h200-tables.json").read_text())
PASSES = ("forward", "dinput", "dweight")
ROW = re.compile(r"^\| ((?:KNN, )?.*?\d.*?→\d+.*?) \| (.*\(.*x\).*) \|$", re.MULTILINE)
ROWS = ROW.findall(README)


def entry_name(work):
    """The name of a benchmark's entry, from the words of a row."""
    channels = re.search(r"(\d+)→(\d+)(?!.* nodes)", work)
    if work.startswith("KNN"):
        taps = re.search(r"K (\d+)", work)[1]
        nodes = re.search(r"([\d,→]+) (?:nodes|points)", work)[1].replace(",", "").replace("→", "->")
        batch = re.search(r"batch (\d+)", work)
        return f"{batch[1] if batch else 1}x{nodes} {channels[1]}->{channels[2]} K={taps}"
    kernel = re.search(r", (\d+x\d+), stride (\d+)", work)
    window = f"{kernel[1]} stride {kernel[2]}" if kernel else "3x3"
    return f"{work.split(',')[0]} {channels[1]}->{channels[2]} {window}"


def shown(text):
    """A number, and the most that it can be off for being rounded."""
    return float(text), 0.5001 * 10.0 ** -len(text.partition(".")[2])


def test_all_rows_are_found():
    assert len(ROWS) == README.count("x) |\n") > 0


@pytest.mark.parametrize(("work", "cells"), ROWS, ids=[work for work, _ in ROWS])
def test_times(work, cells):
    for name, cell in zip(PASSES, cells.split(" | "), strict=True):
        (entry,) = (
            entry
            for entry in RESULT["entries"]
            if (entry["name"], entry["pass"], entry["dtype"]) == (entry_name(work), name, "bfloat16")
        )
        times = {
            side: figures["device"]["median_ms"] for side, figures in entry["sides"].items() if "device" in figures
        }
        other = times["peer"] if work.startswith("KNN") else min(t for side, t in times.items() if "cudnn" in side)
        time, ratio = map(shown, re.fullmatch(r"([\d.]+) \(([\d.]+)x\)", cell).groups())
        assert abs(times["ours"] - time[0]) <= time[1], name
        assert abs(other / times["ours"] - ratio[0]) <= ratio[1], name


def assert_shown(texts, numbers):
    for text, number in zip(texts, numbers, strict=True):
        value, off = shown(text)
        assert abs(number - value) <= off, text


def test_training_step():
    (step,) = RESULT["steps"]
    sides = step["ours"], step["peer"]
    found = re.search(r"takes ([\d.]+) ms of the device there, its plain Flax twin\s+([\d.]+)", README)
    assert_shown(found.groups(), [side["device"]["median_ms"] for side in sides])
    found = re.search(r"convolutions add up to ([\d.]+) and ([\d.]+) ms, all others to ([\d.]+) and ([\d.]+)\.", README)
    assert_shown(found.groups(), [side["kernels"][kind] for kind in ("convolutions", "others") for side in sides])


def test_gradient_in_x_of_point_clouds():
    times = {
        (entry["name"], entry["pass"]): entry["sides"]["ours"]["device"]["median_ms"]
        for entry in RESULT["entries"]
        if entry["dtype"] == "bfloat16" and entry["name"].startswith("1x") and "K=" in entry["name"]
    }
    ratios = [time / times[name, "forward"] for (name, of), time in times.items() if of == "dinput"]
    found = re.search(r"costs ([\d.]+) to ([\d.]+) times the forward pass on point clouds", README)
    assert_shown(found.groups(), [min(ratios), max(ratios)])


def test_processor():
    summary = json.loads((ROOT / "benchmarks/results/amd-epyc-2-cores.json").read_text())["summary"]
    found = re.search(r"was ([\d.]+)x faster.*?over (\d+) comparisons, with ([\d.]+)x less", README, re.DOTALL)
    assert_shown(found.groups(), [summary["geometric_mean"], summary["comparisons"], summary["cpu_geometric_mean"]])


def table_under(text, words):
    """Rows of the first table after some words: their first cells, and the numbers of the others."""
    lines = text[text.index(words) :].partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}


def test_two_gpus():
    result = json.loads((ROOT / "benchmarks/results/nvidia-h200-x2-spatial.json").read_text())
    rows = table_under((ROOT / "docs/spatial.md").read_text(), "Two H200s over NVLink")
    ways = "one device, knn_conv", "halo exchange", "all-gather, knn_conv", "x[:, idx], einsum"
    for name, cells in rows.items():
        start = name.replace("of level", "level").replace("uniform", "cloud")
        times = {step["way"]: step["loop"]["min_ms"] for step in result["steps"] if step["points"] == start}
        assert_shown(cells, [times[way] for way in ways])
    result = json.loads((ROOT / "benchmarks/results/nvidia-h200-x2-weak-scaling.json").read_text())["weak_scaling"]
    rows = table_under((ROOT / "docs/devices.md").read_text(), "Two H200s over NVLink")
    for cells, workload in zip(rows.values(), ("knn", "knn_half_batch", "cifar10"), strict=True):
        step = result[workload]
        times = [side["median_ms"] for side in (*step["alone"], step["together"])]
        assert_shown([*cells[1].split(", "), *cells[2:]], [*times, step["speedup"]])
