"""Several open splits in turn: their order, what is closed, and which of them are left out."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.dispatch.terms import Claim
from featstore.errors import DataFileError, DispatchError, MissingValueError, StateError
from featstore.loader.plan.shuffle import RowOrder
from featstore.loader.rows.interleaving import read_windows
from featstore.loader.rows.split_reader import SplitReader, Window
from featstore.loader.rows.work import Work
from featstore.loader.stats import Stats
from featstore.table.snapshot import DataFile
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
    released: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    skipped: list[tuple[int, int]] = field(default_factory=list)

    def of(
        self, file: DataFile, index: int, reserve: Callable[[int], int] = lambda row: row
    ) -> Work:
        return replace(
            work_on(file, index),
            release=lambda: self.released.append(index),
            fail=lambda: self.failed.append(index),
            reserve=reserve,
        )

    def drawing(self, works: list[Work]) -> Iterator[Work]:
        for work in works:
            self.drawn.append(work.claim.index)
            yield work

    def skip(self, claim: Claim, through: int, error: DataFileError) -> None:
        self.skipped.append((claim.index, through))


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    return [
        data_file(
            tmp_path / f"{index}.parquet",
            pa.table({"row": pa.array([100 * index + row for row in range(size)], pa.int64())}),
        )
        for index, size in enumerate(SIZES)
    ]


def fails(error: Exception, at: int) -> Callable[[int], int]:
    """What a store, or whatever is asked for each window, says to the one that ends at a row."""

    def reserve(row: int) -> int:
        if row == at:
            raise error
        return row

    return reserve


@pytest.mark.parametrize(
    ("width", "order"),
    [(1, [0, 0, 0, 1, 2, 3, 3, 3]), (2, [0, 1, 2, 3, 0, 3, 0, 3]), (9, [0, 1, 2, 3, 0, 3, 0, 3])],
)
def test_so_many_splits_as_are_open_at_once_give_a_window_in_turn(
    files: list[DataFile], width: int, order: list[int]
) -> None:
    noted = Noted()
    work = noted.drawing([noted.of(file, index) for index, file in enumerate(files)])
    found, num_open = [], []
    for window in read_windows(work, OPEN, width):
        found.append(window)
        num_open.append(len(noted.drawn) - len(noted.released))
    assert [window.work.claim.index for window in found] == order
    assert max(num_open) == min(width, len(SIZES))
    assert sorted(noted.released) == [0, 1, 2, 3]
    assert sorted(chain.from_iterable(rows_in(found))) == [
        100 * index + row for index, size in enumerate(SIZES) for row in range(size)
    ]


def test_an_iteration_that_is_left_closes_what_it_opened_and_draws_no_more(
    files: list[DataFile],
) -> None:
    noted = Noted()
    windows = read_windows(
        noted.drawing([noted.of(file, index) for index, file in enumerate(files)]), OPEN, 2
    )
    next(windows)
    windows.close()
    assert (noted.drawn, noted.released) == ([0, 1], [0, 1])


@pytest.mark.parametrize("skips", [False, True])
def test_a_file_that_cannot_be_opened_is_an_error_or_left_out_whole_and_let_go(
    files: list[DataFile], skips: bool
) -> None:
    Path(files[2].url).write_bytes(b"no Parquet")
    noted = Noted()
    work = iter([noted.of(file, index) for index, file in enumerate(files)])
    windows = read_windows(work, OPEN, 1, noted.skip if skips else None)
    if skips:
        assert {window.work.claim.index for window in windows} == {0, 1, 3}
        assert noted.skipped == [(2, 0)]
    else:
        with pytest.raises(DataFileError, match=r"^2\.parquet: "):
            list(windows)
    assert noted.failed == [2]
    assert noted.released == [0, 1, 2, 3][: 4 if skips else 3]


@pytest.mark.parametrize("skips", [False, True])
def test_a_split_that_breaks_in_the_middle_is_an_error_or_left_out_from_there(
    files: list[DataFile], skips: bool
) -> None:
    noted = Noted()
    broken = noted.of(files[0], 0, fails(DataFileError("damaged"), at=32))
    windows = read_windows(
        iter([broken, noted.of(files[2], 2)]), OPEN, 1, noted.skip if skips else None
    )
    found = [next(windows)]
    if skips:
        found += windows
        assert rows_in(found) == [list(range(16)), list(range(200, 216))]
        assert noted.skipped == [(0, 16)]
        assert noted.released == [0, 2]
    else:
        with pytest.raises(DataFileError, match="damaged"):
            next(windows)
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
    broken = noted.of(files[0], 0, fails(error, at=16))
    with pytest.raises(type(error), match=str(error)):
        list(read_windows(iter([broken]), OPEN, 1, noted.skip))
    assert noted.skipped == []
    assert noted.failed == ([0] if is_the_files else [])
    assert noted.released == [0]


def test_a_window_is_let_go_before_the_next_one_is_read(files: list[DataFile]) -> None:
    alive = list[weakref.ref[Window]]()

    def reserve(row: int) -> int:
        assert not [each for each in alive if each() is not None]
        return row

    work = Noted().of(files[0], 0, reserve)
    windows = read_windows(iter([work]), OPEN, 1)
    while (window := next(windows, None)) is not None:
        alive.append(weakref.ref(window))
        del window
    assert len(alive) == 3
