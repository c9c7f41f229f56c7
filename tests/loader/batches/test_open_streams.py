"""Streams that are mixed: in which order they are drawn, and what is known of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.batches.mixtures import Mixture, next_window
from featstore.loader.batches.open_streams import OpenStreams, WindowStream
from featstore.loader.batches.split_reader import SplitReader
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, Shuffle
from featstore.table.snapshot import DataFile
from tests.loader.batches.conftest import Unlimited
from tests.loader.conftest import data_file, request_of, work_on
from tests.native.oracles import orders as oracle

NUM_ROWS, WINDOW_ROWS = 48, 16
ORDER = RowOrder(seed=3, epoch=1, shuffle=Shuffle(window_rows=WINDOW_ROWS, interleave=1))
OPEN = partial(
    SplitReader,
    request=request_of(pa.schema([("row", pa.int64())]), "row"),
    order=ORDER,
    budget=Unlimited(),
    stats=Stats(),
)
# The split of each stream, and the row at which it begins: of the second split two workers had parts.
CLAIMS = [(2, 0), (5, 3), (5, 32), (7, 20), (8, 0)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, DataFile]:
    root: Path = tmp_path_factory.mktemp("files")
    return {
        index: data_file(root / f"{index}.parquet", pa.table({"row": range(NUM_ROWS)}))
        for index in (2, 5, 7, 8)
    }


@contextmanager
def opened(files: dict[int, DataFile], claims: Sequence[tuple[int, int]]) -> Iterator[OpenStreams]:
    """The streams of claims, added in this order, with their first windows."""
    streams = OpenStreams(ORDER)
    for index, start_row in claims:
        end_row = 32 if (index, start_row) == (5, 3) else 0
        streams.add(WindowStream(OPEN(work_on(files[index], index, start_row, end_row))))
    begin_waiting(streams)
    yield streams
    for stream in streams:
        stream.reader.close()


def begin_waiting(streams: OpenStreams) -> None:
    for stream in list(streams.waiting):
        window = next_window(stream.next_window, stream.reader, None)
        assert window is not None
        assert streams.begin(stream, window)


def drawn(mixture: Mixture) -> list[int]:
    """The split of each row."""
    assert mixture.draws is not None
    return [mixture.shares[share].window.work.claim.index for share in mixture.draws.tolist()]


@given(st.permutations(CLAIMS), st.integers(1, 12))
def test_rows_are_drawn_by_splits_and_positions_whichever_was_opened_first(
    files: dict[int, DataFile], claims: list[tuple[int, int]], most_rows: int
) -> None:
    with opened(files, claims) as streams:
        assert [stream.place[:2] for stream in streams] == CLAIMS
        streams.begin_mixture()
        assert streams.draw(most_rows) is None  # Of 12 or more rows in each window.
        found = drawn(streams.mixture())
    splits, starts = zip(*CLAIMS, strict=True)
    draws = oracle.draws(3, 1, splits, [NUM_ROWS] * len(splits), sum(starts), most_rows)
    assert found == [splits[number] for number in draws]


def test_all_rows_of_all_streams_are_drawn_and_what_is_open_is_counted(
    files: dict[int, DataFile],
) -> None:
    with opened(files, CLAIMS) as streams:
        sizes = [stream.size_bytes for stream in streams]
        assert (streams.size_bytes, streams.largest_bytes) == (sum(sizes), max(sizes))
        found = list[int]()
        while streams:
            streams.begin_mixture()
            window = streams.draw(1000)
            assert window is not None
            [stream] = streams.waiting
            assert stream.window is None
            mixture = streams.mixture()
            assert [share.is_end for share in mixture.shares].count(True) == 1
            found += drawn(mixture)
            if stream.is_finished:
                streams.remove(stream)
                stream.reader.close()
            begin_waiting(streams)
            windows = [stream.window for stream in streams if stream.window is not None]
            assert streams.num_rows == sum(each.num_rows for each in windows)
            assert len(windows) == len(streams)
    assert {index: found.count(index) for index in set(found)} == {2: 48, 5: 45, 7: 28, 8: 48}
    assert (streams.size_bytes, streams.largest_bytes, streams.waiting) == (0, 0, [])


def test_a_window_of_which_all_rows_were_delivered_is_not_open(files: dict[int, DataFile]) -> None:
    streams = OpenStreams(ORDER)
    stream = WindowStream(OPEN(work_on(files[2], 2, start_row=NUM_ROWS, end_row=NUM_ROWS)))
    streams.add(stream)
    window = next_window(stream.next_window, stream.reader, None)
    assert window is not None
    assert not streams.begin(stream, window)
    assert (streams.waiting, streams.num_rows, stream.window) == ([stream], 0, None)


def test_streams_whose_windows_end_first_come_first_and_those_of_one_window_not(
    files: dict[int, DataFile], tmp_path: Path
) -> None:
    one = data_file(tmp_path / "9.parquet", pa.table({"row": range(2)}))
    with opened(files | {9: one}, [*CLAIMS, (9, 0)]) as streams:
        # Rows that are left: 16, 13, 16, 12, 16 and 2.
        places = [stream.place[:2] for stream in streams.by_rows_left()]
    assert places == [(7, 20), (5, 3), (2, 0), (5, 32), (8, 0)]
