"""The room that a GPU's dweight asks for: enough for its smallest split, and bounded."""

import numpy as np
import pytest

from jax_knnconv import _workspace

MIB = 1 << 20


@pytest.mark.parametrize("groups", [(), (1,), (3, 5), (1000,)])
@pytest.mark.parametrize(
    ("weight", "columns"), [(0, 8), (1, 1), (27 * 32, 32), (9 * 64 * 64, 64), (9 * 512 * 512, 512)]
)
def test_room_for_a_slice_of_each_group_and_db(weight, columns, groups):
    slices, one = _workspace.partial_sums(weight, columns, groups, platform="cuda").shape
    count = int(np.prod(groups, initial=1))
    assert one == weight + columns
    assert slices >= 2 * count
    # Beyond the least, all groups together stay within the budget.
    assert (slices - 2 * count) * one * 4 <= 32 * MIB


def test_room_on_the_cpu_does_not_depend_on_groups():
    alone = _workspace.partial_sums(9 * 64 * 64, 64, (), platform="cpu")
    assert _workspace.partial_sums(9 * 64 * 64, 64, (7,), platform="cpu") == alone
    assert alone.shape == (56, 9 * 64 * 64 + 64)  # 2^21 elements in all
