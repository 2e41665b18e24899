"""The knockout programs: what is compiled how, and the shares of time. Nothing is compiled here."""

import io
import json
import os
import pathlib

import pytest
from benchmark_cases import ROOT
from rich.console import Console

from benchmarks import knockout


def test_each_program_lacks_one_part(tmp_path):
    compiles, links = knockout.commands(tmp_path, "nvcc", "sm_90")
    made = {command[command.index("-o") + 1]: command for command in compiles}
    assert len(made) == len(compiles)
    assert [link[-1] for link in links] == [
        str(tmp_path / name) for name in ("whole", "products", "gathers", "barriers")
    ]
    for link, part in zip(links, knockout.VARIANTS, strict=True):
        flags = set()
        for name in link:
            if name.endswith(".o"):
                flags |= {flag for flag in made[name] if flag.startswith("-DKNNCONV")} - {"-DKNNCONV_WITHOUT_HALO"}
        assert flags == (set() if part == "whole" else {f"-DKNNCONV_WITHOUT_{part.upper()}"})
    # What is not there fails to compile or to link only where there is a compiler.
    header = (ROOT / "lib" / "gpu" / "knockout.h").read_text()
    for part in knockout.PARTS:
        assert f"KNNCONV_WITHOUT_{part.upper()})" in header
    for command in compiles:
        (source,) = (argument for argument in command if argument.endswith((".cu", ".cc")))
        assert source.startswith(str(ROOT))
        assert pathlib.Path(source).is_file()


def test_shares(tmp_path, capsys, monkeypatch):
    programs = {"nvidia-smi": "a GPU, 1.2", "nvcc": "nvcc: NVIDIA\nBuild 3"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    times = {"whole": "a 4.0\nb 2.0", "products": "a 1.0\nb 2.0", "gathers": "a 3.0\nb 1.5", "barriers": "a 4.2\nb 2.0"}
    for part, text in times.items():
        (tmp_path / part).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / part).chmod(0o755)
    assert knockout.run(tmp_path) == {
        "a": {"whole": 4, "products": 1, "gathers": 3, "barriers": 4.2},
        "b": {"whole": 2, "products": 2, "gathers": 1.5, "barriers": 2},
    }
    assert knockout.main(["--run-only", str(tmp_path), "--out", str(tmp_path / "out.json")]) == 0
    assert "75%" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())
    assert (results["gpu"], results["nvcc"]) == ("a GPU, 1.2", "Build 3")
    assert "commit" in results
    found = results["milliseconds"]
    assert knockout.shares(found["a"]) == pytest.approx({"products": 0.75, "gathers": 0.25, "barriers": -0.05})
    console = Console(file=io.StringIO(), width=120)
    console.print(knockout.table(found))
    row = next(line for line in console.file.getvalue().splitlines() if "a" in line and "4" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["a", "4", "75%", "25%", "-5%"]


def test_build_needs_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(knockout.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="nvcc"):
        knockout.main(["--build-only", str(tmp_path)])


def test_a_machine_without_compiler_and_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert knockout.describe() == {"commit": None, "nvcc": None, "gpu": None}
