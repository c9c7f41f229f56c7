"""The windows of one split: from any row to any end, as far as a claim goes, and nothing twice."""

import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.loader.batches import split_reader
from featstore.loader.batches.filtering import WindowCache
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.split_reader import SplitReader, Window, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, Shuffle
from featstore.table.snapshot import DataFile
from tests.loader.conftest import data_file, request_of, rows_in, work_on

NUM_ROWS = 70  # In row groups of 16.
SCHEMA = pa.schema([("row", pa.int64())])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> DataFile:
    path = tmp_path_factory.mktemp("file") / "a.parquet"
    return data_file(path, pa.table({"row": range(NUM_ROWS)}))


@pytest.fixture(scope="module")
def sliced_file(tmp_path_factory: pytest.TempPathFactory) -> DataFile:
    """Of row groups that are decoded in slices of 1,024 rows under a budget of 1,000 bytes."""
    path = tmp_path_factory.mktemp("file") / "sliced.parquet"
    return data_file(path, pa.table({"row": range(5_000)}), row_group_size=2_500)


def opened(
    work: Work,
    *,
    window_rows: int | None = None,
    cache: WindowCache | None = None,
    budget: Budget | None = None,
    where: str | None = None,
    stats: Stats | None = None,
) -> SplitReader:
    shuffle = None if window_rows is None else Shuffle(window_rows=window_rows)
    return SplitReader(
        work,
        request=request_of(SCHEMA, "row", where=where),
        order=RowOrder(seed=1, epoch=2, shuffle=shuffle),
        stats=stats or Stats(),
        window_cache=cache,
        budget=budget,
    )


def flat(windows: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(windows))


def windows_of(reader: SplitReader) -> list[Window]:
    found = list[Window]()
    while not reader.is_finished:
        found += reader.read()
    reader.close()
    return found


@given(st.data(), st.sampled_from([None, 20, 100]))
def test_a_claim_from_any_row_to_any_row_has_the_rows_of_the_whole_stream_from_there_to_there(
    file: DataFile, data: st.DataObject, window_rows: int | None
) -> None:
    start = data.draw(st.integers(0, NUM_ROWS - 1))
    end = data.draw(st.integers(start + 1, NUM_ROWS))
    whole = flat(rows_in(windows_of(opened(work_on(file), window_rows=window_rows))))
    assert sorted(whole) == list(range(NUM_ROWS))
    claimed = work_on(file, start_row=start, end_row=end)
    found = windows_of(opened(claimed, window_rows=window_rows))
    assert flat(rows_in(found)) == whole[found[0].first_row : end]
    assert found[0].first_row <= start < found[0].end_row
    assert [window.is_last for window in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize(
    ("most_rows", "max_bytes", "expected"),
    [
        (32, sys.maxsize, [32, 32, 6]),
        (47, sys.maxsize, [32, 38]),
        (48, sys.maxsize, [48, 22]),
        (1 << 15, sys.maxsize, [70]),
        (1 << 15, 8 * 8 * 33, [32, 32, 6]),
        (1, sys.maxsize, [16, 16, 16, 16, 6]),
    ],
)
def test_small_row_groups_are_read_together(
    file: DataFile,
    monkeypatch: pytest.MonkeyPatch,
    most_rows: int,
    max_bytes: int,
    expected: list[int],
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", most_rows)
    found = windows_of(opened(work_on(file), budget=Budget(max_bytes)))
    assert [window.num_rows for window in found] == expected
    assert flat(rows_in(found)) == list(range(NUM_ROWS))
    [last] = windows_of(opened(work_on(file, start_row=66), budget=Budget(max_bytes)))
    assert last.end_row == NUM_ROWS


@pytest.mark.parametrize(("extras", "expected"), [([], [16, 54]), (["text"], [16, 32, 22])])
def test_the_first_window_and_those_with_text_have_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extras: list[str], expected: list[int]
) -> None:
    """Somebody may wait for the first one, and footers do not tell how large decoded texts are."""
    monkeypatch.setattr(split_reader, "MOST_ROWS", 64)
    monkeypatch.setattr(split_reader, "_MOST_FIRST_ROWS", 20)
    monkeypatch.setattr(split_reader, "_MOST_TEXT_ROWS", 32)
    table = pa.table({"row": range(NUM_ROWS), "text": ["same"] * NUM_ROWS})
    work = work_on(data_file(tmp_path / "a.parquet", table))
    order = RowOrder(seed=1, epoch=2, shuffle=None)
    request = request_of(table.schema, "row", extras=extras)
    reader = SplitReader(work, request=request, order=order, stats=Stats())
    assert [window.num_rows for window in windows_of(reader)] == expected


def test_the_row_groups_before_a_damaged_one_are_read_although_all_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 1 << 15)
    path = tmp_path / "a.parquet"
    file = data_file(path, pa.table({"row": range(NUM_ROWS)}))
    column = pq.read_metadata(path).row_group(3).column(0)
    data = bytearray(path.read_bytes())
    first = column.dictionary_page_offset or column.data_page_offset
    data[first : first + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(data)
    budget, rows = Budget(1 << 20), list[int]()
    reader = opened(work_on(file), budget=budget)

    def read_to_end() -> None:
        while not reader.is_finished:
            for window in reader.read():
                rows.extend(flat(rows_in([window])))
                budget.exchange(window.held_bytes, 0)

    with pytest.raises(DataFileError, match="row group 3"):
        read_to_end()
    assert rows == list(range(48))
    assert budget.held_bytes == 0
    reader.close()
    [found] = windows_of(opened(work_on(file, start_row=66), budget=budget))
    assert (found.first_row, found.end_row) == (64, 70), "what was delivered is not read again"


def test_a_window_of_several_row_groups_is_divided_from_where_its_claim_begins(
    file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "MOST_ROWS", 1 << 15)
    [window] = windows_of(opened(work_on(file, start_row=40, end_row=66)))
    parts = list(window.by_row_group())
    assert [(part.first_row, part.end_row, part.is_last) for part in parts] == [
        (32, 48, False),
        (48, 64, False),
        (64, 66, True),
    ]
    assert [part.select()[0].tolist() for part in parts] == [  # type: ignore[union-attr]
        list(range(32, 48)),
        list(range(48, 64)),
        [64, 65],
    ]


def test_rows_that_a_filter_leaves_out_are_counted_by_the_stream(file: DataFile) -> None:
    found = windows_of(opened(work_on(file), where="row % 2 = 1"))
    assert [(window.first_row, window.end_row) for window in found] == [
        (0, 16),
        (16, 32),
        (32, 48),
        (48, 64),
        (64, 70),
    ]
    assert flat(rows_in(found)) == list(range(1, NUM_ROWS, 2))


def read_within_falling_limits(
    file: DataFile,
    data: st.DataObject,
    window_rows: int | None = None,
    max_bytes: int = sys.maxsize,
) -> None:
    """Reads the file while other workers take rows from its end, of which the reader learns before
    each window; sometimes such that it has read already.
    """
    start, limit = data.draw(st.integers(0, file.num_rows - 1)), sys.maxsize
    falls = iter(data.draw(st.lists(st.none() | st.integers(start, file.num_rows), max_size=9)))

    def asked() -> int:
        nonlocal limit
        fall = next(falls, None)
        limit = limit if fall is None else min(limit, fall)
        return limit

    def windows(work: Work) -> list[Window]:
        budget, found = Budget(max_bytes), list[Window]()
        reader = opened(work, window_rows=window_rows, budget=budget)
        while not reader.is_finished:
            for window in reader.read():
                found.append(window)
                budget.exchange(window.held_bytes, 0)
        reader.close()
        return found

    whole = flat(rows_in(windows(work_on(file))))
    found = windows(replace(work_on(file, start_row=start), limit=asked))
    through = found[-1].end_row
    assert flat(rows_in(found)) == whole[found[0].first_row : through]
    assert all(one.end_row == other.first_row for one, other in pairwise(found))
    is_told = limit >= through
    assert through == min(limit, file.num_rows) or not is_told
    assert [window.is_last for window in found] == [False] * (len(found) - 1) + [is_told]


@pytest.mark.parametrize("window_rows", [None, 20, 100])
@given(data=st.data())
def test_a_split_is_read_as_far_as_its_claim_goes_and_its_end_is_told_once(
    file: DataFile, data: st.DataObject, window_rows: int | None
) -> None:
    read_within_falling_limits(file, data, window_rows)


@given(data=st.data())
def test_row_groups_that_come_in_slices_are_read_as_far_as_the_claim_goes(
    sliced_file: DataFile, data: st.DataObject
) -> None:
    read_within_falling_limits(sliced_file, data, max_bytes=1_000)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, [list(range(16))]),
        (15, [list(range(16))]),
        (16, [list(range(16)), []]),
        (17, [list(range(16)), [16]]),
        (32, [list(range(16)), list(range(16, 32))]),
        (33, [list(range(16)), list(range(16, 32)), [32]]),
    ],
)
def test_a_window_is_read_only_as_far_as_the_claim_still_goes(
    file: DataFile, limit: int | None, expected: list[list[int]]
) -> None:
    """Once others have taken rows before those that come next, or all, nothing is reported: the
    claim's end lies in what is read already.
    """
    limits = iter([sys.maxsize, *[limit] * 9])
    found = windows_of(opened(replace(work_on(file), limit=lambda: next(limits))))
    assert rows_in(found) == expected
    is_reported = limit is not None and limit >= 16
    assert [window.is_last for window in found] == [False] * (len(found) - 1) + [is_reported]
    assert found[-1].end_row == (limit if is_reported else 16)


def test_the_next_claim_of_the_same_window_does_not_read_it_again(file: DataFile) -> None:
    stats, cache = Stats(), WindowCache()
    for start, end in ((0, 5), (5, 16), (16, 20), (20, 32)):
        claimed = work_on(file, start_row=start, end_row=end)
        [window] = windows_of(opened(claimed, cache=cache, stats=stats))
        assert window.end_row == end
    read_bytes = stats.column_bytes["row"]
    once = Stats()
    windows_of(opened(work_on(file, end_row=32), stats=once))
    assert read_bytes == once.column_bytes["row"] > 0


def test_a_window_is_read_in_the_order_of_delivery_and_once_for_the_claims_of_it(
    file: DataFile,
) -> None:
    cache = WindowCache()
    [whole] = windows_of(opened(work_on(file), window_rows=840, cache=cache))
    order = RowOrder(seed=1, epoch=2, shuffle=Shuffle(window_rows=840)).permutation(70, 0, 0)
    assert order is not None
    assert whole.order is None
    assert whole.rows.table["row"].to_pylist() == order.tolist()
    [part] = windows_of(opened(work_on(file, end_row=5), window_rows=840, cache=cache))
    assert part.rows is whole.rows
    assert part.order is not None
    assert part.order.tolist() == list(range(5))
    [other] = windows_of(
        opened(
            replace(work_on(file), claim=replace(work_on(file).claim, index=1)),
            window_rows=840,
            cache=cache,
        )
    )
    assert sorted(other.rows.table["row"].to_pylist()) == list(range(70))
    assert other.rows.table["row"].to_pylist() != order.tolist()


def test_a_window_with_filters_is_read_in_the_order_of_delivery(file: DataFile) -> None:
    [whole] = windows_of(opened(work_on(file), window_rows=840))
    order = whole.rows.table["row"].to_pylist()
    for where in ("row >= 0", "row % 3 = 1"):
        [window] = windows_of(opened(work_on(file), window_rows=840, where=where))
        rows = [row for row in order if where == "row >= 0" or row % 3 == 1]
        assert window.rows.table["row"].to_pylist() == rows
        index, places = window.select()
        if places is not None:
            assert index is None
            assert [order[place] for place in places.tolist()] == rows


def test_a_table_that_counts_other_rows_than_the_file_has_is_told_so(file: DataFile) -> None:
    with pytest.raises(DataFileError, match="expected 69 rows, as the table says, found 70"):
        opened(work_on(replace(file, num_rows=69)))


def test_what_cannot_be_opened_is_not_released_but_its_files_are_closed(file: DataFile) -> None:
    released = []
    work = replace(work_on(file), release=lambda: released.append(True))
    other = work_on(replace(file, num_rows=69))
    with pytest.raises(DataFileError):
        opened(replace(work, claim=other.claim))
    assert released == []
    opened(work).close()
    assert released == [True]


def test_a_split_that_failed_is_finished_and_left_out_from_the_row_it_got_to(
    file: DataFile,
) -> None:
    counts, noted = Counter[str](), []
    work = replace(work_on(file), fail=lambda: counts.update(["failed"]))
    reader = opened(work)
    list(reader.read())
    reader.fail()
    error = DataFileError("damaged")
    reader.skip(lambda claim, through, why: noted.append((claim, through, why)), error)
    assert reader.is_finished
    assert counts["failed"] == 1
    assert noted == [(work.claim, 16, error)]
    reader.close()


def test_a_file_without_rows_has_one_window_that_ends_its_claim(tmp_path: Path) -> None:
    file = data_file(tmp_path / "a.parquet", SCHEMA.empty_table())
    [window] = windows_of(opened(work_on(file)))
    assert (window.rows.num_rows, window.is_last) == (0, True)


@pytest.mark.parametrize("start", [0, 1_023, 1_024, 3_000])
def test_a_row_group_above_the_budget_comes_in_slices_from_the_one_that_holds_the_first_row(
    tmp_path: Path, start: int
) -> None:
    table = pa.table({"row": range(4_000)})
    file = data_file(tmp_path / "a.parquet", table, row_group_size=4_000)
    budget, stats = Budget(1_000), Stats()
    reader = opened(work_on(file, start_row=start), budget=budget, stats=stats)
    rows = []
    for window in reader.read():
        assert budget.held_bytes == window.held_bytes > 0
        rows += flat(rows_in([window]))
        budget.exchange(window.held_bytes, 0)
    reader.close()
    assert rows == list(range(start - start % 1_024, 4_000))
    assert stats.counts["row_groups_sliced"] == 1


def test_the_first_row_group_that_comes_in_slices_is_warned_of_with_the_budget_that_it_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = data_file(tmp_path / "a.parquet", pa.table({"row": range(8_000)}), row_group_size=4_000)

    def num_slices(max_bytes: int) -> int:
        budget, stats, count = Budget(max_bytes), Stats(), 0
        reader = opened(work_on(file), budget=budget, stats=stats)
        while not reader.is_finished:
            for window in reader.read():
                budget.exchange(window.held_bytes, 0)
                count += 1
        reader.close()
        return count

    assert num_slices(1_000) > 2
    [record] = [r for r in caplog.records if "decoded in slices" in r.getMessage()]
    advised = re.search(r"set memory_budget to (\d+)", record.getMessage())
    assert advised is not None
    assert num_slices(int(advised[1])) == 2  # one for each row group
    assert num_slices(int(advised[1]) * 4 // 5 - 1) > 2  # beyond the room for larger ones


@pytest.mark.parametrize("max_bytes", [sys.maxsize, 40_000], ids=["whole", "in slices"])
def test_a_claim_whose_rows_are_all_delivered_ends_with_an_empty_window(
    tmp_path: Path, max_bytes: int
) -> None:
    """As one is that a worker takes over whose holder died just before it completed it."""
    file = data_file(tmp_path / "b.parquet", pa.table({"row": range(8_192)}), 4_096)
    stats = Stats()
    claimed = work_on(file, start_row=4_096, end_row=4_096)
    reader = opened(claimed, budget=Budget(max_bytes), stats=stats)
    assert not reader.is_finished
    *_, window = reader.read()
    reader.close()
    assert (window.end_row, window.is_last) == (4_096, True)
    assert reader.is_finished
    assert stats.counts["row_groups_sliced"] == (max_bytes == 40_000)
