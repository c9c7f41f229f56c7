"""What pages may claim, whoever reads them: the kernels, Arrow beside them, or Arrow in
place.
"""

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.native.bounds import read_page_header
from featstore.reading.file_columns import Selection
from featstore.reading.kept import KeptSpans
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from tests.native.mutants import Chunk, number_of, sound_chunks, with_number, write_file

DATA = {0: 5, 3: 8}  # the struct of a data page, by its type
MOST = 2**31 - 1


@pytest.fixture(params=["local", "in place"])
def opened(request: pytest.FixtureRequest) -> Any:
    """Opens a file in one of the ways in which it is read."""

    @contextmanager
    def open_file(path: Path) -> Iterator[OpenFile]:
        source = io.BytesIO(path.read_bytes()) if request.param == "in place" else path
        with OpenFile(source, "part.parquet") as footer:
            yield footer

    return open_file


@pytest.fixture(scope="module", params=range(4))
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chunk:
    """A list column of several pages, V1 and V2, as pyarrow writes it."""
    found = sound_chunks(tmp_path_factory.mktemp("sound"), random.Random(request.param))
    lists = [
        chunk
        for chunk in found
        if chunk.levels[0] and len(chunk.pages) > 2 and chunk.codec == "snappy"
    ]
    chosen: Chunk = lists[request.param % len(lists)]
    return chosen


def _claiming(chunk: Chunk, num_levels: int) -> Chunk:
    """The chunk with a last page that claims so many levels."""
    last = chunk.pages[-1]
    struct = DATA[number_of(last.header, 1)]
    header = [
        (at, type_, with_number(found, 1, num_levels) if at == struct else found)
        for at, type_, found in last.header
    ]
    return replace(chunk, pages=(*chunk.pages[:-1], replace(last, header=header)))


def _read(footer: OpenFile, slot: Slot, *, as_values: bool) -> pa.Table:
    selection = Selection(slots=(slot,))
    return RowGroupReader(footer, selection, num_threads=1, as_values=as_values).read([0]).table


@pytest.mark.parametrize("as_values", [True, False], ids=["values", "Arrow's columns"])
def test_pages_that_claim_more_levels_than_the_footer_says_are_nobody_s_to_read(
    opened: Any, sound: Chunk, tmp_path: Path, as_values: bool
) -> None:
    write_file(tmp_path / "bad.parquet", _claiming(sound, MOST))
    with (
        opened(tmp_path / "bad.parquet") as footer,
        pytest.raises(DataFileError, match=r"part.parquet: column 'x'.*claim more"),
    ):
        _read(footer, sound.slot, as_values=as_values)


@pytest.mark.parametrize("as_values", [True, False], ids=["values", "Arrow's columns"])
def test_pages_that_claim_more_bytes_than_values_can_need_are_nobody_s_to_read(
    opened: Any, sound: Chunk, tmp_path: Path, as_values: bool
) -> None:
    last = sound.pages[-1]
    header = with_number(
        with_number(last.header, 2, MOST), 3, len(last.levels) + len(last.compressed_body("snappy"))
    )
    bad = replace(sound, pages=(*sound.pages[:-1], replace(last, header=header, is_honest=False)))
    write_file(tmp_path / "bad.parquet", bad)
    with (
        opened(tmp_path / "bad.parquet") as footer,
        pytest.raises(DataFileError, match="claim more"),
    ):
        _read(footer, sound.slot, as_values=as_values)


def test_a_row_group_in_slices_is_looked_through_before_too(
    opened: Any, sound: Chunk, tmp_path: Path
) -> None:
    write_file(tmp_path / "bad.parquet", _claiming(sound, MOST))
    with opened(tmp_path / "bad.parquet") as footer:
        slices = RowGroupReader(footer, Selection(slots=(sound.slot,))).slices(0, 10)
        assert slices is not None
        with pytest.raises(DataFileError, match="claim more"):
            next(slices)


def test_sound_pages_are_read_in_every_way(opened: Any, sound: Chunk, tmp_path: Path) -> None:
    write_file(tmp_path / "good.parquet", sound)
    with opened(tmp_path / "good.parquet") as footer:
        found = _read(footer, sound.slot, as_values=False)
    assert found.equals(pq.read_table(tmp_path / "good.parquet"))


def test_a_header_tells_the_levels_of_its_page(sound: Chunk, tmp_path: Path) -> None:
    write_file(tmp_path / "good.parquet", sound)
    with OpenFile(tmp_path / "good.parquet") as footer:
        at, end = footer.footer.span(0, 0)
        for page in sound.pages:
            header = read_page_header(footer.read_at, at, end)
            assert header is not None
            struct = DATA.get(number_of(page.header, 1))
            assert header.num_levels == (0 if struct is None else number_of(page.header, struct, 1))
            assert header.raw_bytes == number_of(page.header, 2)
            at += header.num_bytes + header.size_bytes
        assert at == end


class _Logged(io.BytesIO):
    """A file that notes where it is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads.append((self.tell(), size or 0))
        return super().read(size)


def test_a_column_chunk_that_is_read_in_place_is_fetched_once(tmp_path: Path) -> None:
    table = pa.table({"x": [[1, 2, 3], None, []] * 500, "y": range(1_500)})
    pq.write_table(table, tmp_path / "file.parquet", row_group_size=500, data_page_size=100)
    source = _Logged((tmp_path / "file.parquet").read_bytes())
    slots = (Slot(name="x", kind=SlotKind.ID, shape=(None,)), Slot(name="y", kind=SlotKind.ID))
    with OpenFile(source, "part.parquet") as footer:
        reader = RowGroupReader(footer, Selection(slots=slots))
        source.reads.clear()
        found = [reader.read([index]).table for index in range(3)]
        spans = [
            (footer.footer.span(index, 0)[0], footer.footer.span(index, 1)[1]) for index in range(3)
        ]
    assert pa.concat_tables(found).equals(table)
    assert source.reads == [(first, end - first) for first, end in spans]


def test_column_chunks_far_from_each_other_are_fetched_apart_and_once(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    table = pa.table({name: draw.integers(0, 2**60, 20_000) for name in "abcde"})
    pq.write_table(table, tmp_path / "file.parquet", compression="none", use_dictionary=False)
    source = _Logged((tmp_path / "file.parquet").read_bytes())
    slots = tuple(Slot(name=name, kind=SlotKind.ID) for name in "abe")
    with OpenFile(source, "part.parquet") as footer:
        reader = RowGroupReader(footer, Selection(slots=slots))
        source.reads.clear()
        assert reader.read([0]).table.equals(table.select(["a", "b", "e"]))
        assert footer._kept is not None
        assert footer._kept._kept == {}, "bytes are kept longer than they are needed"
        chunks = [footer.footer.span(0, place) for place in (0, 1, 4)]
    spans = [(chunks[0][0], chunks[1][1]), chunks[2]]
    assert source.reads == [(first, end - first) for first, end in spans]


def test_kept_bytes_are_those_of_the_file() -> None:
    data = bytes(random.Random(1).randbytes(1_000))
    source = _Logged(data)
    file = KeptSpans(source)
    file.keep([(100, 200), (300, 500)])
    source.reads.clear()
    for first, size in [(100, 100), (150, 10), (300, 200), (499, 1)]:
        file.seek(first)
        assert file.read(size) == data[first : first + size]
        assert file.tell() == first + size
    assert not source.reads
    for first, size in [(90, 20), (190, 200), (950, 100), (0, 0)]:  # not in one of the spans
        file.seek(first)
        assert file.read(size) == data[first : first + size]
    file.seek(-10, io.SEEK_END)
    assert file.read() == data[-10:]
    file.seek(5)
    file.seek(5, io.SEEK_CUR)
    assert file.read(3) == data[10:13]
