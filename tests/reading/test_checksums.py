"""Pages against their checksums."""

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError, StoreError
from featstore.native import kernels
from featstore.reading import spans as checked_spans
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import require_intact
from tests.damaged_files import flip
from tests.native.oracles.page_header import read_page_header
from tests.native.oracles.pages import is_intact
from tests.parquet_files import put_parquet
from tests.short_reads import unreadable_descriptors

ROWS = 3_000
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "V2": {"data_page_version": "2.0"},
    "no codec": {"compression": "none"},
    "zstd, V2": {"compression": "zstd", "data_page_version": "2.0"},
    "plain": {"use_dictionary": False},
    "small pages": {"max_rows_per_page": 50},
}


def table() -> pa.Table:
    draw = random.Random(3)
    ids = [draw.randrange(1, 2**62) for _ in range(ROWS)]
    tags = [[draw.randrange(9) for _ in range(draw.randrange(5))] or None for _ in range(ROWS)]
    return pa.table({"id": ids, "tags": tags, "text": [f"text {number % 7}" for number in ids]})


def write(path: Path, *, write_page_checksum: bool = True, **how: Any) -> Path:
    return put_parquet(
        path, table(), row_group_size=1_000, write_page_checksum=write_page_checksum, **how
    )


def pages_of(path: Path) -> list[tuple[int, str, int, int]]:
    """Row group, column, first byte and end of each page's bytes, as the pure reader of headers
    finds them.
    """
    found = []
    with OpenFile(path) as footer:
        for row_group in range(len(footer.row_group_rows)):
            for place, leaf in enumerate(footer.footer.leaves):
                at, end = footer.footer.span(row_group, place)
                while at < end:
                    header = read_page_header(footer.read_at, at, end)
                    assert header is not None
                    first, at = at + header.num_bytes, at + header.num_bytes + header.size_bytes
                    found.append((row_group, leaf.path, first, at))
                assert at == end
    return found


def check(path: Path, held: Any = None) -> None:
    with OpenFile(path, "t/a.parquet") as footer:
        require_intact(footer, held)


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_file_as_it_was_written_is_intact(tmp_path: Path, how: Any) -> None:
    path = write(tmp_path / "a.parquet", **how)
    with OpenFile(path) as footer:
        columns = [footer.footer.span(0, place) for place in range(3)]
        headers = [read_page_header(footer.read_at, *column) for column in columns]
    assert all(header is not None and header.crc is not None for header in headers)
    check(path)


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_bit_that_changed_in_any_page_is_named_by_column_and_row_group(
    tmp_path: Path, how: Any
) -> None:
    path = write(tmp_path / "a.parquet", **how)
    found, draw = pages_of(path), random.Random(4)
    assert len({page[:2] for page in found}) == 9
    for row_group, column, first, end in draw.sample(found, min(len(found), 12)):
        at, bit = draw.randrange(first, end), draw.randrange(8)
        flip(path, at, bit)
        with pytest.raises(
            DataFileError,
            match=rf"^t/a\.parquet: column '{column}': row group {row_group}: expected pages",
        ):
            check(path)
        flip(path, at, bit)
    check(path)


def test_only_what_is_held_is_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    _, _, first, end = pages_of(path)[0]
    flip(path, first)
    spans = [page[2:] for page in pages_of(path) if page[:2] != (0, "id")]
    check(path, held=((min(spans)[0] - 40, path.stat().st_size),))
    check(path, held=((first, end),))  # its header is not there
    with pytest.raises(DataFileError, match="column 'id': row group 0"):
        check(path, held=((0, path.stat().st_size),))


def test_pages_without_checksums_are_taken_for_good(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", write_page_checksum=False)
    flip(path, pages_of(path)[0][2])
    check(path)


def test_pages_that_do_not_fill_their_column_chunk_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", write_page_checksum=False)
    data, (row_group, column, first, _) = path.read_bytes(), pages_of(path)[-1]
    with OpenFile(path) as footer:
        begins = footer.footer.span(2, 2)[0]
    for damaged in (b"\xff" * (first - begins), b"\0" * (first - begins)):
        path.write_bytes(data[:begins] + damaged + data[first:])
        with pytest.raises(DataFileError, match=f"column '{column}': row group {row_group}"):
            check(path)


def test_a_page_and_a_header_larger_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    texts = [
        f"{number:04}" * 1_000 for number in range(100)
    ]  # statistics of up to 4 KiB are written
    path = put_parquet(
        tmp_path / "a.parquet",
        {"text": texts},
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    ((*_, first, end),) = pages_of(path)
    assert first > 8_000  # the header holds the least and the greatest text
    assert end - first > checked_spans._ROOM_BYTES
    check(path)
    flip(path, end - 1)
    with pytest.raises(DataFileError, match="column 'text': row group 0"):
        check(path)


def test_a_file_without_rows_is_intact(tmp_path: Path) -> None:
    pq.write_table(table().slice(0, 0), tmp_path / "a.parquet", write_page_checksum=True)
    check(tmp_path / "a.parquet")


def test_a_file_that_the_system_cannot_read_is_not_taken_for_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    with OpenFile(path, "day/a") as file:
        assert unreadable_descriptors(path)
        with pytest.raises(
            StoreError, match=r"day/a .*: cannot be read: Bad file descriptor"
        ) as found:
            require_intact(file, None)
    assert found.value.errno == errno.EBADF


@given(data=st.data())
def test_kernel_and_python_say_the_same_of_bytes_that_changed_anywhere(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "both.parquet"
    write(path, **data.draw(st.sampled_from(list(WAYS.values()))))
    spans = []
    with OpenFile(path) as footer:
        spans = [footer.footer.span(index, place) for index in range(3) for place in range(3)]
    size = max(end for _, end in spans)
    for _ in range(data.draw(st.integers(0, 3))):
        flip(path, data.draw(st.integers(4, size - 1)), data.draw(st.integers(0, 7)))
    with path.open("rb") as file:
        room = pa.allocate_buffer(checked_spans._ROOM_BYTES)
        by_kernel = kernels.first_damaged(file.fileno(), np.array(spans), room)
        pure = [place for place, span in enumerate(spans) if not is_intact(file.fileno(), span)]
    # The kernel also refuses a header whose other numbers cannot be.
    assert pure == [] or by_kernel >= 0
    assert by_kernel <= min(pure, default=len(spans))
