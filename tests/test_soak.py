"""A short soak: every job's results keep their bits, and what the report says of memory."""

from __future__ import annotations

import benchmark_cases  # noqa: F401, the way to import the benchmarks
import pytest

from benchmarks import soak


def test_results_keep_their_bits():
    report = soak.soak(120, count=6, anew=20)
    assert (report.steps, report.jobs, report.differing) == (120, 6, ())
    assert report.growth < 0.05  # a short run has its caches still to fill; 5,000 steps are held to 1 %


def test_what_counts_as_a_failure():
    held = (1000, 1005)
    good = soak.Report(10, 2, (), held, None)
    assert good.growth == pytest.approx(0.005)
    assert good.ok
    assert not good._replace(differing=("0",)).ok
    assert not good._replace(resident=(1000, 1011)).ok
    assert not good._replace(device=(1000, 1011)).ok
    assert good._replace(device=(1000, 900)).ok


def test_a_changed_bit_is_found(monkeypatch):
    digest, calls = soak._digest, []

    def broken(values):
        calls.append(None)
        return digest(values) if len(calls) < 20 else b"other"

    monkeypatch.setattr(soak, "_digest", broken)
    assert soak.soak(24, count=2, anew=100).differing
