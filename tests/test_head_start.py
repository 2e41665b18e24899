"""Times of a device that does other work while the host queues what is timed, with a clock that the tests move."""

import jax.numpy as jnp
import numpy as np
from benchmark_cases import Ticks

from benchmarks import harness, head_start


class Busy:
    """A device that ends its work at certain times; a host that waits for them on the same clock."""

    def __init__(self, clock):
        self.clock, self.free_at, self.leads, self.wakes_after = clock, 0.0, [], 0.0

    def start(self, seconds):
        clock, wakes_after = self.clock, self.wakes_after
        end = max(self.free_at, clock.now) + seconds
        self.free_at = end

        class Work:
            def is_ready(self):
                return clock.now >= end

            def block_until_ready(self):
                clock.now = max(clock.now, end + wakes_after)

        return Work()

    def ahead(self, seconds):
        self.leads.append(seconds)
        return self.start(seconds)


def test_sample_behind_other_work_is_the_devices_alone(monkeypatch):
    monkeypatch.setattr(harness, "_LONGEST_LEAD_S", 100)
    clock = Ticks()
    busy = Busy(clock)

    def together(*sets):
        clock.now += 1  # the host is slower than the device
        return busy.start(0.25)

    sampler = harness.queued_sampler(together, [(), ()], sample_s=4, clock=clock, ahead=busy.ahead)
    assert sampler() == 0.125
    assert busy.leads == [9, 3]  # six runs and two, of a second each for the host, and half as much again


def test_difference_leaves_the_start_out():
    clock = Ticks()
    busy = Busy(clock)
    busy.wakes_after = 0.375

    def together(*sets):
        clock.now += 0.5  # the host
        return busy.start(0.25)

    sampler = harness.queued_sampler(together, [()], sample_s=1, clock=clock, differences=True)
    assert sampler() == 0.5


def test_late_waking_does_not_count(monkeypatch):
    monkeypatch.setattr(harness, "_LONGEST_LEAD_S", 100)
    clock = Ticks()
    busy = Busy(clock)
    busy.wakes_after = 0.375

    def together(*sets):
        return busy.start(0.25)

    sampler = harness.queued_sampler(together, [()], sample_s=1, clock=clock, ahead=busy.ahead)
    assert sampler() == 0.25


def test_head_start_that_ended_too_early_is_doubled(monkeypatch):
    monkeypatch.setattr(harness, "_LONGEST_LEAD_S", 100)
    clock = Ticks()
    busy, delays = Busy(clock), []

    def together(*sets):
        clock.now += 1 + (delays.pop() if delays else 0)
        return busy.start(0.25)

    sampler = harness.queued_sampler(together, [()], sample_s=2, clock=clock, ahead=busy.ahead)
    delays.append(7)  # once
    assert sampler() == 0.25
    assert busy.leads == [4.5, 9, 3]


def test_host_that_cannot_get_ahead_counts(monkeypatch):
    clock = Ticks()
    busy = Busy(clock)

    def together(*sets):
        clock.now += 1
        return busy.start(0.25)

    def nothing(seconds):
        return busy.start(0)

    monkeypatch.setattr(harness, "_LONGEST_LEAD_S", 100)
    sampler = harness.queued_sampler(together, [()], sample_s=2, clock=clock, ahead=nothing)
    assert sampler() == 1


def test_head_start_has_pieces_for_the_seconds_asked(monkeypatch):
    monkeypatch.setattr(head_start, "_ROUNDS", 1)
    ahead = head_start.HeadStart(16)
    ahead._buffer, ahead._piece_s = jnp.zeros(4), 0.5
    np.testing.assert_array_equal(ahead(1.25), np.full(4, 1.75))  # three pieces of x/2 + 1
    np.testing.assert_array_equal(ahead(0), np.full(4, 1.875))  # one at least
    ahead._buffer.delete()  # as an interruption does
    np.testing.assert_array_equal(ahead(0), np.full(4, 1.5))
    assert head_start.for_device() is None  # where the host computes
