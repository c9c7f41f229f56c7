"""Splits one after the other, and several mixed: the order, what is closed, what is left out."""

import logging
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, groupby, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import DataFileError, DispatchError, MissingValueError, StateError
from featstore.dispatch.terms import Claim
from featstore.loader.batches import mixing
from featstore.loader.batches.bad_files import Skip
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixing import MixTerms, read_mixed
from featstore.loader.batches.mixtures import Mixture, Splits, read_in_order
from featstore.loader.batches.split_reader import SplitReader, Window, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, Shuffle
from featstore.table.snapshot import DataFile
from tests.loader.batches.conftest import Unlimited
from tests.loader.conftest import data_file, request_of, rows_in, work_on

SIZES = (40, 0, 16, 33)  # In row groups of 16.
OPEN = partial(
    SplitReader,
    request=request_of(pa.schema([("row", pa.int64())]), "row"),
    order=RowOrder(seed=0, epoch=0, shuffle=None),
    stats=Stats(),
)


@dataclass
class Noted:
    """What happened to splits, by their positions."""

    drawn: list[int] = field(default_factory=list)
    num_open: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    skipped: list[tuple[int, int]] = field(default_factory=list)

    def of(
        self, file: DataFile, index: int, asked: Callable[[int], None] = lambda number: None
    ) -> Work:
        """Work that asks how far the claim goes before each window, which has this number."""
        numbers = count(1)

        def limit() -> int:
            asked(next(numbers))
            return sys.maxsize

        return replace(
            work_on(file, index),
            release=lambda: self.released.append(index),
            fail=lambda: self.failed.append(index),
            limit=limit,
        )

    def drawing(self, works: list[Work]) -> Iterator[Work]:
        for work in works:
            self.drawn.append(work.claim.index)
            self.num_open.append(len(self.drawn) - len(self.released))
            yield work

    def skip(self, claim: Claim, through: int, error: DataFileError) -> None:
        self.skipped.append((claim.index, through))


def files_in(root: Path) -> list[DataFile]:
    return [
        data_file(
            root / f"{index}.parquet",
            pa.table({"row": pa.array([100 * index + row for row in range(size)], pa.int64())}),
        )
        for index, size in enumerate(SIZES)
    ]


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    return files_in(tmp_path)


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    return files_in(tmp_path_factory.mktemp("files"))


def fails(error: Exception, at: int) -> Callable[[int], None]:
    """What a store, or whatever is asked for each window, says to that of a number."""

    def asked(number: int) -> None:
        if number == at:
            raise error

    return asked


def windows_of(mixtures: Iterable[Mixture]) -> list[Window]:
    return [share.window for mixture in mixtures for share in mixture.shares]


def mixed(
    work: Iterator[Work],
    *,
    width: int,
    seed: int = 0,
    window_rows: int = 32,
    budget: Budget | None = None,
    stats: Stats | None = None,
    skip: Skip | None = None,
    section_of: Callable[[int], range] | None = None,
    num_sharing: int = 1,
    whole_rows: int = 1,
    most_bytes: int = sys.maxsize,
    is_ready: Callable[[], bool] = lambda: True,
) -> Generator[Mixture, None, None]:
    order = RowOrder(
        seed=seed, epoch=0, shuffle=Shuffle(window_rows=window_rows * width, interleave=width)
    )
    budget, stats = budget or Unlimited(), stats or Stats()
    opened = partial(OPEN, order=order, budget=budget, stats=stats)
    return read_mixed(
        Splits(work=work, open_split=opened, skip=skip, is_ready=is_ready),
        MixTerms(
            order=order,
            width=width,
            section_of=section_of or (lambda index: range(1000)),
            num_sharing=num_sharing,
            whole_rows=whole_rows,
            most_bytes=most_bytes,
        ),
        budget,
        stats,
    )


def let_go(mixtures: Iterable[Mixture], budget: Budget) -> Iterator[Mixture]:
    """The mixtures, each of which is assembled before the next one is asked for."""
    for mixture in mixtures:
        for share in mixture.shares:
            if share.is_end:
                budget.let_go(share.window.held_bytes)
        yield mixture


def drawn(mixtures: Iterable[Mixture]) -> list[tuple[int, int]]:
    """The split of each row, and its place in the split's stream."""
    found = []
    for mixture in mixtures:
        assert mixture.draws is not None
        places = [
            iter(range(share.window.first_row + share.begin, share.window.first_row + share.end))
            for share in mixture.shares
        ]
        splits = [share.window.work.claim.index for share in mixture.shares]
        found += [(splits[number], next(places[number])) for number in mixture.draws.tolist()]
        assert all(next(place, None) is None for place in places)
    return found


def test_splits_are_read_one_after_the_other_in_order(files: list[DataFile]) -> None:
    noted = Noted()
    work = noted.drawing([noted.of(file, index) for index, file in enumerate(files)])
    found = []
    for mixture in read_in_order(Splits(work=work, open_split=OPEN)):
        found += windows_of([mixture])
        assert len(noted.drawn) - len(noted.released) == 1
    assert [window.work.claim.index for window in found] == [0, 0, 0, 1, 2, 3, 3, 3]
    assert list(chain.from_iterable(rows_in(found))) == [
        100 * index + row for index, size in enumerate(SIZES) for row in range(size)
    ]


@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_so_many_splits_are_open_at_once_and_give_all_of_their_streams_in_order(
    files: list[DataFile], width: int
) -> None:
    noted = Noted()
    work = noted.drawing([noted.of(file, index) for index, file in enumerate(files)])
    found = drawn(mixed(work, width=width))
    assert max(noted.num_open) == min(width, len(SIZES))
    assert sorted(noted.released) == [0, 1, 2, 3]
    for index, size in enumerate(SIZES):
        assert [row for split, row in found if split == index] == list(range(size))
    if width == 1:
        assert [split for split, _ in found] == sorted(split for split, _ in found)


@pytest.mark.parametrize(("num_sharing", "num_open"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_workers_that_share_a_section_open_their_part_of_it_at_most(
    files: list[DataFile], num_sharing: int, num_open: int
) -> None:
    noted = Noted()
    work = noted.drawing([noted.of(file, index) for index, file in enumerate(files)])
    mixtures = mixed(work, width=12, section_of=lambda _: range(4), num_sharing=num_sharing)
    assert len(drawn(mixtures)) == sum(SIZES)
    assert max(noted.num_open) == num_open


@settings(max_examples=100)
@given(st.data())
def test_from_any_row_on_the_rest_is_mixed_as_if_nothing_had_stopped(
    whole_files: list[DataFile], data: st.DataObject
) -> None:
    files = whole_files
    width, seed = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5))
    window_rows = data.draw(st.integers(1, 50))
    max_bytes = data.draw(st.none() | st.integers(1, 1200))

    def mixture(starts: Sequence[int]) -> list[tuple[int, int]]:
        work = iter(
            [
                work_on(file, index, start_row=start)
                for index, (file, start) in enumerate(zip(files, starts, strict=True))
                if start < file.num_rows
            ]
        )
        budget = Unlimited() if max_bytes is None else Budget(max_bytes)
        mixtures = mixed(work, width=width, seed=seed, window_rows=window_rows, budget=budget)
        return drawn(let_go(mixtures, budget))

    whole = mixture([0] * len(files))
    assert len(whole) == sum(SIZES)
    number = data.draw(st.integers(0, len(whole)))
    starts = [sum(split == index for split, _ in whole[:number]) for index in range(len(files))]
    assert mixture(starts) == whole[number:]


def test_each_split_gives_rows_in_proportion_to_those_it_has(tmp_path: Path) -> None:
    sizes = (3000, 1000)
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(size)}))
        for index, size in enumerate(sizes)
    ]
    found = drawn(mixed(iter(map(work_on, files, range(2))), width=2, window_rows=1000))
    shares = [sum(split == 0 for split, _ in found[at : at + 400]) for at in range(0, 3600, 400)]
    assert all(290 < share < 310 for share in shares)


def test_the_budget_that_is_named_holds_a_batch_whatever_bytes_a_row_takes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = data_file(tmp_path / "one.parquet", pa.table({"row": range(3000)}))
    stats = [Stats(), Stats()]
    for each, budget in zip(stats, (1_000, None), strict=True):
        # A row takes 8.008 bytes, its part of the window's.
        terms: dict[str, Any] = {"width": 1, "window_rows": 1000, "whole_rows": 2049}
        terms |= {"budget": Budget(budget or stats[0].wanted_budget_bytes), "stats": each}
        rows = mixed(iter([work_on(file, 0)]), **terms)
        assert len(drawn(let_go(rows, terms["budget"]))) == 3000
    assert stats[0].counts["rows_in_pieces"] > 2000
    assert stats[1].counts["rows_in_pieces"] == 0
    [told] = [each.message for each in caplog.records if each.name.endswith("mixing")]
    assert f"set memory_budget to {stats[0].wanted_budget_bytes} or more" in told


def test_fewer_splits_are_open_where_the_windows_of_all_would_not_fit(
    files: list[DataFile], caplog: pytest.LogCaptureFixture
) -> None:
    noted, stats = Noted(), Stats()
    work = noted.drawing([noted.of(file, index) for index, file in enumerate(files)])
    budget = Budget(500)  # A window of 32 rows takes 256 bytes.
    open_splits, found = list[set[int]](), []
    with caplog.at_level(logging.WARNING, "featstore.loader.batches.mixing"):
        for mixture in let_go(mixed(work, width=4, budget=budget, stats=stats), budget):
            open_splits.append({share.window.work.claim.index for share in mixture.shares})
            found += drawn([mixture])
    # The first and the last split take more than half of the budget.
    assert [sorted(splits) for splits, _ in groupby(open_splits)] == [[0], [1], [2], [3]]
    assert sorted(noted.released) == [0, 1, 2, 3]
    assert len(found) == sum(SIZES)
    assert stats.counts["interleave_reduced"] == 2
    told = [each.message for each in caplog.records if each.name.endswith("mixing")]
    assert told == [
        "shuffle.interleave: 1 instead of 4 splits open at once, since the windows of more "
        "would take more than half of memory_budget: raise memory_budget, write smaller row "
        "groups, or lower shuffle.window_rows (logged once)",
        "memory_budget: the quarter of 500 bytes in which rows are gathered holds 15 rows of 8 "
        "bytes, fewer than 512: gathered in small pieces they can take several times as long; set "
        "memory_budget to 42240 or more, or select fewer slots or shorter lists (logged again only "
        "with more)",
    ]


def test_once_a_split_with_a_large_window_has_ended_as_many_are_open_as_before(
    tmp_path: Path,
) -> None:
    files = [
        data_file(
            tmp_path / f"{index}.parquet",
            pa.table({"row": range(64)}),
            row_group_size=64 if index == 2 else 16,
        )
        for index in range(6)
    ]
    budget = Budget(900)  # A window of 16 rows takes 128 bytes, one of 64 rows 512.
    open_splits = list[list[int]]()
    work = iter(map(work_on, files, range(len(files))))
    for mixture in let_go(mixed(work, width=3, window_rows=16, budget=budget), budget):
        splits = sorted({share.window.work.claim.index for share in mixture.shares})
        open_splits += [splits] if splits not in open_splits else []
    assert [0, 1] in open_splits
    assert [2] in open_splits
    assert [3, 4, 5] in open_splits
    assert not any(2 in splits and len(splits) > 1 for splits in open_splits)


def test_a_mixture_has_one_share_of_each_window_however_often_others_end(tmp_path: Path) -> None:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(64)}), row_group_size=4)
        for index in range(20)
    ]
    num_windows = 0
    for mixture in mixed(iter(map(work_on, files, range(20))), width=20, window_rows=4):
        windows = [share.window for share in mixture.shares]
        assert len(set(windows)) == len(windows)
        num_windows = max(num_windows, len(windows))
        assert all(share.begin < share.end for share in mixture.shares)
    assert num_windows > 30  # Of 20 open splits, most of which went on to their next window.


def test_the_last_rows_of_all_splits_are_one_mixture(tmp_path: Path) -> None:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(64)})) for index in range(9)
    ]
    noted = Noted()
    work = noted.drawing([noted.of(file, index) for index, file in enumerate(files)])
    *_, last = mixed(work, width=10, window_rows=64)
    ends = [share.window.work.claim.index for share in last.shares if share.is_end]
    assert len(ends) >= 8  # All but the first one to end, after which no more work is found.
    assert sorted(noted.released) == list(range(9))


def test_windows_that_are_read_ahead_take_at_most_half_as_much_as_the_open_ones(
    tmp_path: Path,
) -> None:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(64)}), row_group_size=16)
        for index in range(6)
    ]
    budget = Budget(100_000)  # All windows would fit.
    most_bytes = window_bytes = 0
    mixtures = mixed(iter(map(work_on, files, range(6))), width=6, window_rows=16, budget=budget)
    for mixture in mixtures:
        most_bytes = max(most_bytes, budget.held_bytes)
        window_bytes = max(share.window.held_bytes for share in mixture.shares)
        list(let_go([mixture], budget))
    assert 6 * window_bytes < most_bytes <= 9 * window_bytes
    assert budget.held_bytes == 0


def test_an_iteration_that_is_left_closes_what_it_opened_and_draws_no_more(
    files: list[DataFile],
) -> None:
    noted = Noted()
    work = [noted.of(file, index) for index, file in enumerate(files) if file.num_rows]
    mixtures = mixed(noted.drawing(work), width=2)
    next(mixtures)
    mixtures.close()
    assert (noted.drawn, sorted(noted.released)) == ([0, 2], [0, 2])


@pytest.mark.parametrize("skips", [False, True])
def test_a_file_that_cannot_be_opened_is_an_error_or_left_out_whole_and_let_go(
    files: list[DataFile], skips: bool
) -> None:
    Path(files[2].url).write_bytes(b"no Parquet")
    noted = Noted()
    work = iter([noted.of(file, index) for index, file in enumerate(files)])
    mixtures = read_in_order(Splits(work=work, open_split=OPEN, skip=noted.skip if skips else None))
    if skips:
        assert {window.work.claim.index for window in windows_of(mixtures)} == {0, 1, 3}
        assert noted.skipped == [(2, 0)]
    else:
        with pytest.raises(DataFileError, match=r"^2\.parquet: "):
            list(mixtures)
    assert noted.failed == [2]
    assert noted.released == [0, 1, 2, 3][: 4 if skips else 3]


@pytest.mark.parametrize("skips", [False, True])
def test_a_split_that_breaks_in_the_middle_is_an_error_or_left_out_from_there(
    files: list[DataFile], skips: bool
) -> None:
    noted = Noted()
    broken = noted.of(files[0], 0, fails(DataFileError("damaged"), at=2))
    work = iter([broken, noted.of(files[2], 2)])
    skip = noted.skip if skips else None
    mixtures = read_in_order(Splits(work=work, open_split=OPEN, skip=skip))
    found = windows_of([next(mixtures)])
    if skips:
        found += windows_of(mixtures)
        assert rows_in(found) == [list(range(16)), list(range(200, 216))]
        assert noted.skipped == [(0, 16)]
        assert noted.released == [0, 2]
    else:
        with pytest.raises(DataFileError, match="damaged"):
            next(mixtures)
        assert noted.released == [0]
    assert noted.failed == [0]


@pytest.mark.parametrize(
    ("error", "is_the_files"),
    [
        (DispatchError("the store is lost"), False),
        (StateError("closed"), False),
        (MissingValueError("a null label"), True),
        (OSError("the disk"), True),
    ],
)
def test_what_is_no_bad_file_is_raised_and_a_lost_store_is_no_failure_of_the_split(
    files: list[DataFile], error: Exception, is_the_files: bool
) -> None:
    noted = Noted()
    broken = noted.of(files[0], 0, fails(error, at=1))
    with pytest.raises(type(error), match=str(error)):
        list(read_in_order(Splits(work=iter([broken]), open_split=OPEN, skip=noted.skip)))
    assert noted.skipped == []
    assert noted.failed == ([0] if is_the_files else [])
    assert noted.released == [0]


def test_a_window_is_let_go_before_the_next_one_is_read(files: list[DataFile]) -> None:
    alive = list[weakref.ref[Window]]()

    def asked(number: int) -> None:
        assert not [each for each in alive if each() is not None]

    work = Noted().of(files[0], 0, asked)
    mixtures = read_in_order(Splits(work=iter([work]), open_split=OPEN))
    while (mixture := next(mixtures, None)) is not None:
        alive.append(weakref.ref(mixture.shares[0].window))
        del mixture
    assert len(alive) == 3


@pytest.fixture
def long_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DataFile]:
    """Two files of six windows of 16 rows, of which 8 are drawn at a time."""
    monkeypatch.setattr(mixing, "_LEAST_MIXED_ROWS", 8)
    return [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(96)})) for index in range(2)
    ]


def _mixed_and_let_go(
    files: list[DataFile], budget: Budget, asked: Callable[[int], None]
) -> Iterator[Mixture]:
    """Mixtures of both files, each of which is assembled before the next one is asked for."""
    work = iter([Noted().of(file, index, asked) for index, file in enumerate(files)])
    return let_go(mixed(work, width=2, window_rows=16, budget=budget), budget)


def test_the_next_windows_are_read_one_by_one_while_rows_of_those_before_are_drawn(
    long_files: list[DataFile],
) -> None:
    num_read, found = [0], list[tuple[int, int]]()

    def asked(number: int) -> None:
        num_read[0] += 1

    read_before = []
    for mixture in _mixed_and_let_go(long_files, Unlimited(), asked):
        found += drawn([mixture])
        read_before.append(num_read[0])
        ended = sum((row + 1) % 16 == 0 for _, row in found)
        assert num_read[0] - ended <= 4  # Two that are open, and one ahead for each.
    assert read_before[:3] == [2, 3, 4]
    assert sorted(found) == [(split, row) for split in range(2) for row in range(96)]


def test_a_mixture_goes_on_with_the_next_window_where_one_ends(long_files: list[DataFile]) -> None:
    mixtures = list(_mixed_and_let_go(long_files, Unlimited(), lambda number: None))
    sizes = [len(mixture.draws) for mixture in mixtures if mixture.draws is not None]
    assert max(sizes) == 8
    assert sizes.count(8) > 0.8 * len(sizes)
    assert any(len(mixture.shares) > 2 for mixture in mixtures)


def test_a_mixture_ends_with_a_batch_and_has_a_whole_one_however_little_is_gathered_at_a_time(
    tmp_path: Path,
) -> None:
    file = data_file(tmp_path / "0.parquet", pa.table({"row": range(100)}))
    work = partial(work_on, file, 0, start_row=3, end_row=100)
    mixtures = list(mixed(iter([work()]), width=1, window_rows=40, whole_rows=16, most_bytes=1))
    ends = np.cumsum([len(mixture.draws) for mixture in mixtures if mixture.draws is not None])
    assert ends.tolist() == [16, 32, 48, 64, 80, 96, 97]
    assert drawn(mixtures) == drawn(mixed(iter([work()]), width=1, window_rows=40))


def test_no_window_is_read_ahead_for_which_the_budget_has_no_room(
    long_files: list[DataFile],
) -> None:
    num_read, num_ended = [0], 0

    def asked(number: int) -> None:
        num_read[0] += 1

    whole = drawn(_mixed_and_let_go(long_files, Unlimited(), lambda number: None))
    budget = Budget((2 * 128 + 127) * 4 // 3)  # Two windows, and not quite a third.
    budget.fits_open = lambda size_bytes: True  # type: ignore[method-assign]
    found = list[tuple[int, int]]()
    for mixture in _mixed_and_let_go(long_files, budget, asked):
        found += drawn([mixture])
        num_ended += sum(share.is_end for share in mixture.shares)
        assert num_read[0] - num_ended <= 2
    assert found == whole


@pytest.mark.parametrize("skips", [False, True])
def test_a_window_that_breaks_when_it_is_read_ahead_takes_no_rows_before_it_along(
    long_files: list[DataFile], skips: bool
) -> None:
    noted = Noted()
    broken = noted.of(long_files[0], 0, fails(DataFileError("damaged"), at=3))
    mixtures = mixed(
        iter([broken, noted.of(long_files[1], 1)]),
        width=2,
        window_rows=16,
        skip=noted.skip if skips else None,
    )
    found = list[tuple[int, int]]()
    if skips:
        found = drawn(mixtures)
        assert noted.skipped == [(0, 32)]
    else:
        with pytest.raises(DataFileError, match="damaged"):
            found.extend(row for mixture in mixtures for row in drawn([mixture]))
    assert [row for split, row in found if split == 0] == list(range(32))
    assert noted.failed == [0]
    assert sorted(noted.released) == [0, 1]


@pytest.fixture
def six_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DataFile]:
    """Six files of two windows of 64 rows; 16 rows of two open ones are drawn at a time."""
    monkeypatch.setattr(mixing, "_LEAST_MIXED_ROWS", 16)
    return [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(128)}), row_group_size=64)
        for index in range(6)
    ]


def _read_before_each(
    files: list[DataFile], noted: Noted, budget: Budget, is_ready: Callable[[], bool] = lambda: True
) -> Iterator[tuple[set[int], list[tuple[int, int]]]]:
    """Which splits have rows in each mixture, and which windows are read before it: of which split,
    and the how manieth.
    """
    read = list[tuple[int, int]]()

    def asked(index: int, number: int) -> None:
        read.append((index, number))

    work = [noted.of(file, index, partial(asked, index)) for index, file in enumerate(files)]
    mixtures = mixed(noted.drawing(work), width=2, window_rows=64, budget=budget, is_ready=is_ready)
    for mixture in let_go(mixtures, budget):
        yield {split for split, _ in drawn([mixture])}, list(read)


def test_the_first_windows_of_the_next_splits_are_read_while_the_last_ones_of_those_open_are_drawn(
    six_files: list[DataFile],
) -> None:
    noted = Noted()
    steps = list(_read_before_each(six_files, noted, Unlimited()))
    all_read = steps[-1][1]
    for split in (2, 3, 4, 5):
        is_there = [splits for splits, read in steps if (split, 1) in read]
        assert split not in is_there[0]  # It is read while rows of the two before it are drawn.
        last_windows = [(before, 2) for before in range(split // 2 * 2 - 2, split // 2 * 2)]
        assert max(map(all_read.index, last_windows)) < all_read.index((split, 1))
    assert max(noted.num_open) == 2
    assert sorted(noted.released) == list(range(6))


def test_a_mixture_goes_on_with_the_next_split_where_one_ends(
    six_files: list[DataFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "_LEAST_MIXED_ROWS", 50)  # Of 256 rows of two splits.
    work = iter([Noted().of(file, index) for index, file in enumerate(six_files)])
    mixtures = list(mixed(work, width=2, window_rows=64))
    splits = [{share.window.work.claim.index for share in mixture.shares} for mixture in mixtures]
    assert any(len(each) > 2 for each in splits)
    assert len(mixtures) < 6 * 128 / 50 + 4


def test_files_are_let_go_when_the_last_window_is_read_and_not_when_its_rows_are_drawn(
    six_files: list[DataFile],
) -> None:
    noted = Noted()
    num_drawn = 0
    for mixture in mixed(iter([noted.of(six_files[0], 0)]), width=1, window_rows=64):
        num_drawn += len(drawn([mixture]))
        if noted.released:
            break
    assert 64 <= num_drawn < 128


@pytest.mark.parametrize("delivered", [64, 128])
def test_a_claim_that_is_opened_ahead_and_is_delivered_already_ends_without_rows(
    six_files: list[DataFile], delivered: int
) -> None:
    """As one is that a worker takes over whose holder died just before it completed it."""
    noted, budget = Noted(), Budget(100_000)
    works = [noted.of(file, index) for index, file in enumerate(six_files)]
    claim = replace(works[2].claim, start_row=delivered, end_row=delivered)
    works[2] = replace(works[2], claim=claim)
    found, has_ended = list[tuple[int, int]](), set[int]()
    for mixture in let_go(mixed(iter(works), width=2, window_rows=64, budget=budget), budget):
        found += drawn([mixture])
        has_ended |= {
            share.window.work.claim.index
            for share in mixture.shares
            if share.is_end and share.window.is_last
        }
    assert sorted(found) == [(split, row) for split in (0, 1, 3, 4, 5) for row in range(128)]
    assert has_ended == set(range(6))
    assert budget.held_bytes == 0


def test_no_split_of_another_section_has_its_first_window_read_ahead(
    six_files: list[DataFile],
) -> None:
    noted, read = Noted(), set[int]()

    def asked(index: int, number: int) -> None:
        read.add(index)

    work = [noted.of(file, index, partial(asked, index)) for index, file in enumerate(six_files)]
    num_drawn = 0
    for mixture in mixed(
        noted.drawing(work),
        width=2,
        window_rows=64,
        section_of=lambda index: range(index // 2 * 2, index // 2 * 2 + 2),
    ):
        section = num_drawn // 256
        num_drawn += len(drawn([mixture]))
        assert max(read) < 2 * section + 2
        assert max(noted.drawn) <= 2 * section + 2  # One is opened, which tells its section.
    assert num_drawn == 6 * 128


def test_no_split_is_opened_ahead_whose_files_are_not_there(six_files: list[DataFile]) -> None:
    noted = Noted()
    budget = Unlimited()
    last = 1
    for splits, _ in _read_before_each(six_files, noted, budget, is_ready=lambda: False):
        last = max(last, *splits)
        assert max(noted.drawn) <= last + 1  # Only when one has ended.
    assert noted.drawn == list(range(6))


def test_no_first_window_is_read_ahead_for_which_the_budget_has_no_room(
    six_files: list[DataFile],
) -> None:
    budget = Budget((2 * 512 + 511) * 4 // 3)  # Two windows, and not quite a third.
    budget.fits_open = lambda size_bytes: True  # type: ignore[method-assign]
    noted, last = Noted(), 1
    for splits, read in _read_before_each(six_files, noted, budget):
        last = max(last, *splits)
        assert max(index for index, _ in read) <= last + 1
        assert max(noted.drawn) <= last + 2  # One is opened, to know its size.


@given(seed=st.integers(0, 99), is_ready=st.lists(st.booleans(), max_size=20))
@settings(max_examples=30, deadline=None)
def test_the_order_of_rows_does_not_depend_on_which_files_were_there_early(
    whole_files: list[DataFile], seed: int, is_ready: list[bool]
) -> None:
    def mixture(is_ready: Callable[[], bool]) -> list[tuple[int, int]]:
        files = [*whole_files, *whole_files]
        work = iter(map(work_on, files, range(len(files))))
        return drawn(mixed(work, width=3, seed=seed, window_rows=16, is_ready=is_ready))

    answers = chain(is_ready, repeat(True))
    assert mixture(lambda: next(answers)) == mixture(lambda: False)


@pytest.mark.parametrize("is_ready", [False, True])
def test_splits_of_one_row_join_a_mixture_of_few_rows_if_they_can_be_read_at_once(
    tmp_path: Path, is_ready: bool
) -> None:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": [index]})) for index in range(80)
    ]
    work = iter(map(work_on, files, range(len(files))))
    mixtures = list(mixed(work, width=3, is_ready=lambda: is_ready))
    sizes = [len(mixture.shares) for mixture in mixtures]
    # The last one has the rows that are left when no split follows.
    assert sizes == ([32, 32, 16] if is_ready else [1] * 78 + [2])
    assert sorted(row for row, _ in drawn(mixtures)) == list(range(80))


@pytest.mark.parametrize("skips", [False, True])
def test_a_split_that_cannot_be_opened_ahead_takes_no_rows_before_it_along(
    six_files: list[DataFile], skips: bool
) -> None:
    Path(six_files[2].url).write_bytes(b"damaged")
    noted = Noted()
    work = [noted.of(file, index) for index, file in enumerate(six_files[:4])]
    mixtures = mixed(iter(work), width=2, window_rows=64, skip=noted.skip if skips else None)
    found = list[tuple[int, int]]()
    if skips:
        found = drawn(mixtures)
        assert noted.skipped == [(2, 0)]
    else:
        with pytest.raises(DataFileError):
            found.extend(row for mixture in mixtures for row in drawn([mixture]))
    delivered = [0, 1, 3] if skips else [0, 1]
    wanted = [(split, row) for split in delivered for row in range(128)]
    # An error is raised when the split is to take its place: the other one has rows left then.
    missing = set(wanted) - set(found)
    assert len(missing) <= (0 if skips else 8)
    assert set(found) <= set(wanted)
    assert noted.failed == [2]
    assert sorted(noted.released) == ([0, 1, 2, 3] if skips else [0, 1, 2])


def test_a_split_of_another_section_waits_until_all_that_are_open_have_ended(
    tmp_path: Path,
) -> None:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(size)}))
        for index, size in enumerate((80, 20, 40, 40))
    ]
    stats = Stats()

    def mixture(starts: Sequence[int]) -> list[tuple[int, int]]:
        work = [
            work_on(file, index, start_row=start)
            for index, (file, start) in enumerate(zip(files, starts, strict=True))
            if start < file.num_rows
        ]
        sections = (range(2), range(2, 4))
        return drawn(
            mixed(iter(work), width=3, stats=stats, section_of=lambda index: sections[index // 2])
        )

    whole = mixture([0] * 4)
    splits = [split for split, _ in whole]
    assert set(splits[:100]) == {0, 1}
    assert set(splits[100:120]) == {2, 3}
    assert stats.counts["interleave_reduced"] == 0
    for number in range(0, len(whole), 7):
        starts = [splits[:number].count(index) for index in range(4)]
        assert mixture(starts) == whole[number:]


def test_rounds_of_a_section_are_equally_wide(tmp_path: Path) -> None:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(200)}))
        for index in range(5)
    ]
    work = iter(map(work_on, files, range(5)))
    found = drawn(mixed(work, width=4, window_rows=16, section_of=lambda index: range(5)))
    # Three and two at once. Four would leave the last one for itself.
    splits = [split for split, _ in found]
    assert set(splits[:550]) == {0, 1, 2}
    assert set(splits[650:]) == {3, 4}
    assert min(splits[-50:].count(split) for split in (3, 4)) > 15
