import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Plan, Split, SplitSize, splits_of


def _splits(num_splits: Any) -> Any:
    return [Split(path=f"{i}.parquet", num_rows=i) for i in range(num_splits)]


@given(
    num_splits=st.integers(0, 700), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 1000)
)
def test_an_epoch_is_a_permutation_of_the_splits(num_splits: int, seed: int, epoch: int) -> None:
    splits = _splits(num_splits)
    assert (
        sorted(Plan(splits=splits, seed=seed, epoch=epoch), key=lambda split: split.num_rows)
        == splits
    )


@given(num_splits=st.integers(1, 300), seed=st.integers(), epoch=st.integers(0, 9), data=st.data())
def test_any_position_can_be_computed_alone_and_two_plans_agree(
    num_splits: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    plan, other = (Plan(splits=_splits(num_splits), seed=seed, epoch=epoch) for _ in range(2))
    index = data.draw(st.integers(0, num_splits - 1))
    assert plan[index] == list(other)[index]
    assert plan.digest == other.digest


def test_each_epoch_and_each_seed_has_its_own_order_and_digest() -> None:
    plans = [
        Plan(splits=_splits(100), seed=seed, epoch=epoch) for seed in range(5) for epoch in range(5)
    ]
    assert len({tuple(split.id for split in plan) for plan in plans}) == 25
    assert len({plan.digest for plan in plans}) == 25


def test_without_shuffling_splits_keep_the_order_of_the_snapshot() -> None:
    splits = _splits(50)
    assert list(Plan(splits=splits, seed=1, epoch=3, shuffle=False)) == splits


def test_every_split_reaches_every_part_of_the_order_about_equally_often() -> None:
    counts = [[0] * 5 for _ in range(5)]
    for seed in range(2000):
        for index, split in enumerate(Plan(splits=_splits(5), seed=seed)):
            counts[split.num_rows][index] += 1
    assert all(300 < count < 500 for row in counts for count in row)


def test_adjacent_splits_are_separated() -> None:
    order = [split.num_rows for split in Plan(splits=_splits(1000), seed=1)]
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(order)) < 15


class _Counted(Sequence[Any]):
    """A million splits, created when they are read."""

    num_made = 0

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: Any) -> Any:
        self.num_made += 1
        return Split(path=f"{index}.parquet", num_rows=1)


def test_a_large_plan_creates_only_the_splits_that_are_read() -> None:
    splits = _Counted()
    plan = Plan(splits=splits, seed=3)
    assert len({plan[index].path for index in range(0, 1_000_000, 10_000)}) == 100
    assert splits.num_made == 100


def test_positions_outside_of_the_plan_are_refused() -> None:
    plan = Plan(splits=_splits(3))
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"split {index} of a plan of 3"):
            plan[index]
    assert list(Plan(splits=[])) == []


@pytest.mark.parametrize(
    "fields",
    [{"num_rows": -1}, {"first_row_group": -1}, {"first_row_group": 2, "last_row_group": 1}],
)
def test_impossible_splits_are_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"no such split: a\.parquet#"):
        Split(**({"path": "a.parquet", "num_rows": 1} | fields))


GROUPS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), max_size=12)


def _cut(groups: Any, **size: int) -> list[Split]:
    num_rows, sizes_bytes = [rows for rows, _ in groups], [size for _, size in groups]
    return list(splits_of("a", num_rows, sizes_bytes, SplitSize(**size)))


@given(groups=GROUPS, most=st.integers(1, 300), by_rows=st.booleans())
def test_the_splits_of_a_file_cover_its_row_groups_in_order_and_none_is_too_large(
    groups: Any, most: int, by_rows: bool
) -> None:
    weights = [rows if by_rows else size for rows, size in groups]
    splits = _cut(groups, **{"num_rows" if by_rows else "size_bytes": most})
    covered: list[Any] = []
    for split in splits:
        last = len(groups) - 1 if split.last_row_group is None else split.last_row_group
        mine = range(split.first_row_group, last + 1)
        assert split.num_rows == sum(groups[i][0] for i in mine)
        assert sum(weights[i] for i in mine) <= most or len(mine) == 1
        covered += mine
    assert covered == list(range(len(groups)))


@given(
    groups=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=2, max_size=12),
    most=st.integers(1, 300),
)
def test_no_two_adjacent_splits_would_fit_into_one(groups: list[Any], most: int) -> None:
    splits = _cut(groups, num_rows=most)
    for one, other in zip(splits, splits[1:]):  # noqa: B905, RUF007
        assert one.num_rows + groups[other.first_row_group][0] > most


def test_a_file_no_larger_than_the_limit_is_one_split() -> None:
    assert _cut([(5, 1), (5, 1)], num_rows=10) == [Split(path="a", num_rows=10)]
    assert _cut([], num_rows=10) == [Split(path="a", num_rows=0)]


@pytest.mark.parametrize("sizes", [(100,), (1, 99), (40, 1, 59), (1,) * 100])
def test_splits_of_a_section_stay_together_each_in_an_order_of_its_own(
    sizes: tuple[int, ...],
) -> None:
    splits = _splits(100)
    plan = Plan(splits=splits, seed=1, section_sizes=sizes)
    first = 0
    for size in sizes:
        section = range(first, first + size)
        found = [plan[index] for index in section]
        assert sorted(splits.index(split) for split in found) == list(section)
        assert all(plan.section_of(index) == section for index in section)
        first += size
    equal = Plan(splits=splits, seed=1, section_sizes=(50, 50))
    one, two = ([splits.index(equal[at]) % 50 for at in equal.section_of(i)] for i in (0, 50))
    assert one != two
    assert Plan(splits=splits, seed=1).section_of(7) == range(100)


def test_a_plan_with_sections_is_another_plan() -> None:
    digests = {
        Plan(splits=_splits(4), section_sizes=sizes).digest for sizes in [(), (4,), (1, 3), (3, 1)]
    }
    assert len(digests) == 4


@pytest.mark.parametrize("sizes", [(1, 1), (4, 0), (5, -1), (2, 3)])
def test_sections_hold_all_splits_of_a_plan(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sections of .* splits of a plan of 4"):
        Plan(splits=_splits(4), section_sizes=sizes)
