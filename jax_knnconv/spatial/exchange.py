"""Which rows each device sends to which other, in rounds of a permutation each."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

# What is sent, padding included, is at most this much of what is needed.
_MOST_SENT = 1.1
# How much wider than a transfer the round may be that it shares: with more, there are fewer rounds and more padding.
# The last alone keeps below _MOST_SENT.
_SHARES = (np.inf, 5.0, 3.0, 2.0, 1.7, 1.5, 1.4, 1.3, 1.2, 1.15, _MOST_SENT)


class Round(NamedTuple):
    """Transfers that happen at once: each device sends to at most one other and receives from at most one."""

    width: int  # rows of each transfer
    pairs: tuple[tuple[int, int], ...]  # (sender, receiver)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The static side of a sharded table: sizes, and the rounds in which halo rows travel.

    Attributes:
      num_shards: P.
      source_size, output_size: rows of x and of y on each device, padding included.
      rounds: a `Round` is one collective permute.
      needed: [P] distinct off-device source rows that each device's table names: the least that it can receive.
      received: [P] rows that each device receives, padding included; at most 1.1 times `needed` over all devices.
      sent: [P] rows that each device sends, padding included.
      padded_rows: the last rows of y that are padding on some device.
      return_layers: how many own rows were sent at least once, twice, ... on the device with the most.
    """

    num_shards: int
    source_size: int
    output_size: int
    rounds: tuple[Round, ...]
    needed: tuple[int, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    padded_rows: int
    return_layers: tuple[int, ...]

    @property
    def halo_size(self) -> int:
        """The rows that a device appends to its own: the sum of the rounds' widths."""
        return sum(round_.width for round_ in self.rounds)

    @property
    def total_needed(self) -> int:
        """Distinct off-device rows, over all devices."""
        return sum(self.needed)

    @property
    def total_received(self) -> int:
        """Rows that travel in one exchange, padding included, over all devices."""
        return sum(self.received)

    def __str__(self) -> str:
        padding = self.total_received / self.total_needed if self.total_needed else 1.0
        return (
            f"{self.num_shards} devices: {self.total_received} rows exchanged in {len(self.rounds)} rounds, "
            f"{padding:.3f} of the {self.total_needed} needed; at most {max(self.needed)} needed, "
            f"{max(self.received)} received and {max(self.sent)} sent by one device, which owns {self.source_size}"
        )


def schedule(counts: np.ndarray) -> tuple[Round, ...]:
    """Rounds for counts [P, P], where counts[q, p] rows go from q to p, in one piece each.

    An edge colouring of the graph of transfers, the largest first, each in the first round that both its ends are free
    in and that is not too wide for it. Of the ways to draw that line, the one with the fewest rounds whose padding is
    within bounds. One padded all_to_all would send P * (P - 1) * max(counts) rows, on compact parts two to twenty
    times as many.
    """
    num_shards = len(counts)
    senders, receivers = np.nonzero(counts)
    widths = counts[senders, receivers]
    # Equal ones in the order of a shift, which is a round where all devices do the same.
    largest_first = np.lexsort((senders, (receivers - senders) % num_shards, -widths))
    transfers = [(int(widths[i]), int(senders[i]), int(receivers[i])) for i in largest_first]
    candidates = [_colour(transfers, share, num_shards) for share in _SHARES]
    most = _MOST_SENT * widths.sum()
    within = [rounds for rounds in candidates if sum(r.width * len(r.pairs) for r in rounds) <= most]
    return min(within, key=lambda rounds: (len(rounds), sum(round_.width for round_ in rounds)))


def _colour(transfers: list[tuple[int, int, int]], share: float, num_shards: int) -> tuple[Round, ...]:
    widths: list[int] = []
    pairs: list[list[tuple[int, int]]] = []
    sends, receives = [np.zeros((num_shards, len(transfers)), bool) for _ in range(2)]
    for width, sender, receiver in transfers:
        taken = (sends[sender] | receives[receiver])[: len(widths)]
        fits = np.flatnonzero(~taken & (np.array(widths, np.float64) <= share * width))
        if fits.size:
            chosen = int(fits[0])
        else:
            chosen = len(widths)
            widths.append(width)
            pairs.append([])
        pairs[chosen].append((sender, receiver))
        sends[sender, chosen] = receives[receiver, chosen] = True
    return tuple(Round(width, tuple(sorted(of))) for width, of in zip(widths, pairs, strict=True))
