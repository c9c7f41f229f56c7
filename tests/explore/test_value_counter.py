"""Counters with little memory compared with counts of all values at once."""

import errno
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DiskFullError
from featstore.explore.value_counter import CountingSpace, ValueCounter
from featstore.statistics.value_counts import ValueCounts, count_values


def joined(parts: list[ValueCounts]) -> tuple[list[Any], list[int], list[list[float]]]:
    values = np.concatenate([part.values for part in parts])
    assert np.all(values[1:] > values[:-1])
    sums = np.concatenate([part.sums for part in parts], axis=1)
    counts = np.concatenate([part.counts for part in parts])
    return values.tolist(), counts.tolist(), sums.tolist()


@given(
    st.lists(st.lists(st.integers(0, 300), max_size=60), max_size=12),
    st.sampled_from([0, 200, 1_000, 1 << 20]),
    st.sampled_from([np.int64, np.float32]),
)
def test_counts_are_the_same_in_any_memory(
    batches: list[list[int]], budget_bytes: int, dtype: type[np.generic]
) -> None:
    arrays = [np.array(batch, dtype) for batch in batches]
    everything = np.concatenate([np.zeros(0, dtype), *arrays])
    expected = count_values(everything, [everything * 2.0])
    with CountingSpace(budget_bytes) as space:
        one, other = ValueCounter(space, dtype, 1), ValueCounter(space, np.int64)
        for array in arrays:
            one.add(array, [array * 2.0])
            other.add(array.astype(np.int64) % 7)
        assert one.num_values == len(everything)
        assert joined(list(one.merged())) == joined([expected])
        assert joined(list(other.merged())) == joined(
            [count_values(everything.astype(np.int64) % 7)]
        )


def test_only_what_exceeds_the_budget_goes_to_disk() -> None:
    few, many = np.arange(10), np.arange(100_000)
    with CountingSpace(1 << 20) as space:
        small, large = ValueCounter(space, np.int64), ValueCounter(space, np.int64)
        small.add(few)
        assert space.num_spilled_bytes == 0
        for _ in range(3):
            large.add(many)
        assert space.num_spilled_bytes >= 16 * 100_000
        assert small.num_bytes > 0
        parts = list(large.merged())
        assert len(parts) > 1
        assert joined(parts) == joined([count_values(np.repeat(many, 3))])


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, *_: int) -> int:
            return 0

        def write(self, _: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with (
        CountingSpace(100) as space,
        pytest.raises(DiskFullError, match=r"do not fit into 100 bytes.*point TMPDIR to a larger"),
    ):
        ValueCounter(space, np.int64).add(np.arange(1_000))
