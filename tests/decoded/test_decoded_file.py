"""An entry gives the row groups of its data file, whichever are asked for."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featstore.base.errors import StagingError
from featstore.decoded import decoding
from featstore.decoded.decoded_cache import DecodedCache
from featstore.decoded.decoded_file import DecodedFile, with_row_groups
from featstore.decoded.decoding import entry_of
from featstore.decoded.file_sources import SourcesAhead
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile
from tests.decoded.conftest import listed, selection_of
from tests.loader.conftest import rows_table

ALL = selection_of(rows_table(0, 100))


@pytest.fixture
def decoded(
    cache: DecodedCache, stager: Stager, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DecodedFile]:
    """Seven row groups, in pieces of two, two and three."""
    monkeypatch.setattr(decoding, "_PIECE_ROWS", 40)
    [entry] = cache.open_all([entry_of(file, ALL, SourcesAhead(stager), 1)])
    closed = list[str]()
    with DecodedFile(entry, file.path, lambda: closed.append("closed")) as made:
        yield made
    assert closed == ["closed"]


def content(rows: Rows, selection: Selection) -> list[object]:
    return [
        rows.num_rows,
        [repr(listed(rows.slot(slot))) for slot in selection.slots],  # NaN is no NaN's equal.
        [rows.other(field).to_pylist() for field in selection.others],
    ]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.lists(st.integers(0, 6), unique=True).map(sorted))
def test_the_same_rows_come_as_from_the_file(
    decoded: DecodedFile, file: DataFile, row_groups: list[int]
) -> None:
    with OpenFile(Path(file.url)) as opened:
        expected = RowGroupReader(opened, ALL, as_values=True).read(row_groups)
        found = decoded.reader(ALL).read(row_groups)
        assert content(found, ALL) == content(expected, ALL)


def test_it_has_the_row_groups_of_the_file_and_what_they_take(
    decoded: DecodedFile, file: DataFile
) -> None:
    with OpenFile(Path(file.url)) as opened:
        reader = RowGroupReader(opened, ALL)
        assert decoded.row_group_rows == tuple(opened.row_group_rows) == (*[16] * 6, 4)
        sizes = [reader.size_bytes([index]) for index in range(7)]
    assert decoded.row_group_bytes == tuple(sizes)
    found = decoded.reader(ALL)
    assert found.size_bytes(range(2, 4)) == sum(sizes[2:4])
    assert (found.room_bytes(range(7)), found.slices(0, 1), found.parts) == (0, None, [])


def test_row_groups_that_were_decoded_together_are_one_array_and_no_copy(
    decoded: DecodedFile,
) -> None:
    table = decoded.reader(ALL).read([0, 1]).table
    assert {column.num_chunks for column in table.columns} == {1}
    again = decoded.reader(ALL).read([0, 1]).table
    addresses = [t.column("slot/row").chunk(0).buffers()[1].address for t in (table, again)]
    assert addresses[0] == addresses[1]


def test_no_columns_are_rows_all_the_same(decoded: DecodedFile) -> None:
    rows = decoded.reader(Selection()).read([0, 5, 6])
    assert (rows.num_rows, rows.table.num_columns) == (36, 0)


def test_rows_are_not_read_once_somebody_has_written_to_the_entry(
    decoded: DecodedFile, stager: Stager
) -> None:
    reader = decoded.reader(ALL)
    reader.read([0])
    [path] = stager.cache.root.glob("*.staged")
    with path.open("r+b") as file:
        file.write(b"x")
    with pytest.raises(StagingError, match="somebody wrote to the file"):
        reader.read([1])


def test_row_groups_are_in_the_schema() -> None:
    schema = with_row_groups(pa.schema([("a", pa.int64())]), [2, 1], [20, 10])
    assert schema.metadata == {b"row_groups": b"[[2, 20], [1, 10]]"}
