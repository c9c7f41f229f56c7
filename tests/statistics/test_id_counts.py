from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from featstore.native import kernels
from featstore.statistics.value_counts import IdCounts
from tests.native.oracles.values import count_ids

IDS = st.lists(st.sampled_from([0, 1, 2, 3, 1025, 2049, 2**62 + 1, 2**63 - 1]) | st.integers(0, 99))


def integers(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def counted(counts: IdCounts) -> dict[int, int]:
    ids, numbers = counts.counts
    return dict(zip(ids.tolist(), numbers.tolist(), strict=True))


@given(batches=st.lists(IDS, max_size=4))
def test_every_id_is_counted_and_first_seen_where_it_first_was(batches: list[list[int]]) -> None:
    counts, seen, expected = IdCounts(10_000), set[int](), Counter[int]()
    for batch in batches:
        firsts = counts.update(integers(batch))
        new = [i for i, x in enumerate(batch) if x and x not in seen and x not in batch[:i]]
        assert firsts.tolist() == new
        seen.update(batch)
        expected.update(x for x in batch if x)
    assert counted(counts) == expected
    assert list(counted(counts)) == sorted(expected, key=lambda x: (-expected[x], x))


def test_as_many_ids_as_allowed_are_counted_and_one_more_gives_up() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 2**63 - 1, 10_001)
    rows = rng.permutation(np.repeat(ids[:-1], 3))
    counts = IdCounts(10_000)
    num_new = sum(len(counts.update(batch)) for batch in np.split(rows, [1, 5_000, 20_000]))
    assert (num_new, counts.num_known, counts.has_given_up) == (10_000, 10_000, False)
    assert set(counted(counts).values()) == {3}
    counts.update(ids[-1:])
    assert (counts.has_given_up, counts.num_known, counted(counts)) == (True, 0, {})
    assert counts.update(ids).tolist() == []


def test_the_most_frequent_are_kept_among_any_number_of_others() -> None:
    rng = np.random.default_rng(0)
    frequent = rng.integers(1, 2**63 - 1, 100)
    counts = IdCounts(1_000, keeps_top=True)
    for _ in range(20):
        counts.update(
            rng.permutation(
                np.concatenate([np.repeat(frequent, 5), rng.integers(1, 2**63 - 1, 900)])
            )
        )
        assert counts.num_known <= 1_000
    ids, numbers = counts.counts
    assert set(ids[:100]) == set(frequent)
    assert numbers.max() <= 100  # never more than there were
    assert not counts.has_given_up


@given(values=IDS, before=st.lists(st.integers(1, 99), max_size=6, unique=True))
def test_both_implementations_stop_at_the_same_id(values: list[int], before: list[int]) -> None:
    """With a table of 8 keys, of which 4 may be taken."""
    results = []
    for count in (kernels.count_ids, count_ids):
        table, firsts = np.zeros((8, 2), np.int64), np.zeros(99, np.int64)
        known, read, _ = count(integers(before), integers([]), table, 0, firsts)
        more = integers(values)[:90]
        found = count(more, more % 1_000, table, known, firsts)
        results.append((read, found, firsts[: found[2]].tolist(), sorted(table.tolist())))
    assert results[0] == results[1]
