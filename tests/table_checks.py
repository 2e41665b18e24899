"""What a NeighborTable must hold, by Python's own sort, and tables built inside jit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_knnconv.table import NeighborTable

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
SOURCE_ORDER = ("source_offsets", "source_rows", "source_slots")
SLOT_ORDER = ("slot_offsets", "slot_rows", "slot_sources")
LEAVES = ("indices", "slots", *SOURCE_ORDER, *SLOT_ORDER)


def expected_leaves(indices, slots, num_inputs, num_slots):
    """The leaves of one table by Python's sort of tuples."""
    num_rows, num_taps = np.shape(indices)
    has_slots = slots is not None
    rows = [
        sorted((int(slots[m][k]) if has_slots else k, k, int(indices[m][k])) for k in range(num_taps))
        for m in range(num_rows)
    ]
    taps = [(i, s, m) for m, row in enumerate(rows) for s, _, i in row if 0 <= i < num_inputs]
    by_source = sorted(taps)  # taps equal in all three are the same
    by_slot = sorted(taps, key=lambda tap: (tap[1], tap[2]))  # stable: column order for equal ones

    def column(order, field):
        return [tap[field] for tap in order] + [-1] * (num_rows * num_taps - len(order))

    def offsets(order, field, count):
        return [[sum(tap[field] < n for tap in order), 0] for n in range(count + 1)]

    leaves = {
        "indices": [[i for _, _, i in row] for row in rows],
        "slots": None,
        "source_offsets": offsets(by_source, 0, num_inputs),
        "source_rows": column(by_source, 2),
        "source_slots": column(by_source, 1),
        **dict.fromkeys(SLOT_ORDER),
    }
    if has_slots:
        leaves["slots"] = [[s for s, _, _ in row] for row in rows]
        leaves["slot_offsets"] = offsets(by_slot, 1, num_slots)
        leaves["slot_rows"] = column(by_slot, 2)
        leaves["slot_sources"] = column(by_slot, 0)
    return leaves


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for name in LEAVES:
        if getattr(a, name) is not None:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name, strict=True)
            assert getattr(a, name).dtype == jnp.int32


@functools.cache
def traced_builder(num_inputs, num_slots):
    return jax.jit(lambda i, s: NeighborTable(i, s, num_inputs=num_inputs, num_slots=num_slots))


def traced_table(indices, slots=None, *, num_inputs, num_slots=None):
    return traced_builder(num_inputs, num_slots)(indices, slots)


def forward(x, w, table):
    """x [N, C], w [V, C, O]; slots are columns unless the table has them."""
    indices = np.asarray(table.indices)
    slots = np.broadcast_to(np.arange(indices.shape[1]), indices.shape) if table.slots is None else table.slots
    y = np.zeros((len(indices), w.shape[2]))
    for k in range(indices.shape[1]):
        taps = (indices[:, k] >= 0) & (indices[:, k] < len(x))
        y[taps] += np.einsum("nc,nco->no", x[indices[taps, k]], w[np.asarray(slots)[taps, k]])
    return y
