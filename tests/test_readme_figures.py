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


def test_training_step():
    (step,) = RESULT["steps"]
    ours, peer = (step[side]["device"]["median_ms"] for side in ("ours", "peer"))
    found = re.search(r"takes ([\d.]+) ms of the device there, its plain Flax twin\s+([\d.]+)", README)
    for text, time in zip(found.groups(), (ours, peer), strict=True):
        value, off = shown(text)
        assert abs(time - value) <= off
