"""A data file becomes one entry, whose name follows from its version and the columns."""

from dataclasses import replace

import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.decoded import decoding
from featstore.decoded.decoded_cache import DecodedCache
from featstore.decoded.decoded_file import piece_of
from featstore.decoded.decoding import entry_of
from featstore.decoded.file_sources import SourcesAhead
from featstore.reading.file_columns import Selection
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile, GroupFile
from tests.decoded.conftest import listed, selection_of
from tests.loader.conftest import data_file, rows_table

TABLE = rows_table(0, 100)
ALL = selection_of(TABLE)


def test_all_rows_of_a_file_are_in_its_entry(
    cache: DecodedCache, stager: Stager, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of whole row groups, of which there are 7, as they would be of a larger file."""
    monkeypatch.setattr(decoding, "_PIECE_ROWS", 40)
    [entry] = cache.open_all([entry_of(file, ALL, SourcesAhead(stager), 2)])
    pieces = [piece_of(batch, ALL, file.path) for batch in entry.batches]
    assert [piece.num_rows for piece in pieces] == [32, 32, 36]
    rows = [row for piece in pieces for row in listed(piece.slots["row"])]
    assert rows == list(range(100))
    entry.close()


def test_pieces_are_of_few_bytes(
    cache: DecodedCache, stager: Stager, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_PIECE_BYTES", 1)
    [entry] = cache.open_all([entry_of(file, ALL, SourcesAhead(stager), 1)])
    assert [batch.num_rows for batch in entry.batches] == [16] * 6 + [4]
    entry.close()


def test_columns_of_slot_groups_are_in_the_entry(
    cache: DecodedCache, stager: Stager, file: DataFile
) -> None:
    late = pa.table({"late": range(100)})
    made = data_file(stager.cache.root.parent / "late.parquet", late)
    group = GroupFile(
        group="g", path=made.path, url=made.url, size_bytes=made.size_bytes, num_rows=100
    )
    selection = Selection(slots=(*ALL.slots, *selection_of(late).slots), others=ALL.others)
    [entry] = cache.open_all(
        [entry_of(replace(file, groups=(group,)), selection, SourcesAhead(stager), 1)]
    )
    piece = piece_of(entry.batches[0], selection, file.path)
    assert listed(piece.slots["late"]) == list(range(100))
    entry.close()


def test_the_name_follows_from_the_version_and_the_columns_in_any_order(
    stager: Stager, file: DataFile
) -> None:
    name = entry_of(file, ALL, SourcesAhead(stager), 1).name
    turned = Selection(slots=ALL.slots[::-1], others=ALL.others[::-1])
    assert entry_of(file, turned, SourcesAhead(stager), 4).name == name
    others = [
        entry_of(replace(file, version="2"), ALL, SourcesAhead(stager), 1),
        entry_of(replace(file, size_bytes=file.size_bytes + 1), ALL, SourcesAhead(stager), 1),
        entry_of(replace(file, url=file.url + "x"), ALL, SourcesAhead(stager), 1),
        entry_of(file, Selection(slots=ALL.slots[1:], others=ALL.others), SourcesAhead(stager), 1),
        entry_of(
            file,
            Selection(slots=(replace(ALL.slots[0], number=7), *ALL.slots[1:]), others=ALL.others),
            SourcesAhead(stager),
            1,
        ),
        entry_of(file, Selection(slots=ALL.slots), SourcesAhead(stager), 1),
    ]
    assert len({name, *(other.name for other in others)}) == 7


def test_a_file_of_other_rows_than_the_table_says_is_an_error(
    cache: DecodedCache, stager: Stager, file: DataFile
) -> None:
    with pytest.raises(DataFileError, match="expected 99 rows, as the table says, found 100"):
        cache.open_all([entry_of(replace(file, num_rows=99), ALL, SourcesAhead(stager), 1)])
    assert stager.cache.entries() == []


def test_names_of_entries_are_frozen(stager: Stager) -> None:
    """Otherwise a new version decodes everything again, and finds no room for it."""
    made = DataFile(
        path="dt=2026-11-01/a.parquet",
        url="s3://bucket/ctr/dt=2026-11-01/a.parquet",
        size_bytes=1_234,
        num_rows=100,
        version="1762000000000",
        partition={"dt": "2026-11-01"},
    )
    selection = Selection(
        slots=(
            Slot(name="user", kind=SlotKind.ID, number=101),
            Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=103),
        ),
        others=(pa.field("click", pa.int64()),),
    )
    request = entry_of(made, selection, SourcesAhead(stager), 1)
    assert request.name == "5cce3afe48c6bef7757a3ee9f5603d89e543c61d"
    assert request.title == "3 decoded columns of s3://bucket/ctr/dt=2026-11-01/a.parquet"
