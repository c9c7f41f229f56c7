"""Deleted rows are those that the record says, or an error names what is wrong with it."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from featstore.base.errors import DataFileError
from featstore.native.columns import numbers
from featstore.table.row_masks import (
    MaskRecord,
    RowMask,
    decode_base85,
    deleted_rows,
    num_deleted_in,
    texts_of_masks,
)
from tests.masked_tables import base85, vector_bytes, vector_file

ROWS = st.sets(st.integers(0, 200_000) | st.integers(0, 50)).map(sorted)


@given(ROWS)
def test_the_rows_of_a_vector_in_the_log(rows: list[int]) -> None:
    data = vector_bytes(rows)
    mask = RowMask((MaskRecord("delta-vector", num_bytes=len(data), text=base85(data)),), len(rows))
    found = deleted_rows(mask, "f", 200_001)
    assert found.dtype == np.int64
    assert found.tolist() == rows
    with pytest.raises(ValueError, match="read-only"):
        found[:] = 0


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
RECORDS = st.builds(MaskRecord, TEXTS, TEXTS, st.integers(), st.integers(), TEXTS)


@given(st.lists(RECORDS, max_size=3), st.none() | st.integers(0))
def test_a_mask_is_json_that_begins_with_the_number_of_rows(
    records: list[MaskRecord], num_deleted: int | None
) -> None:
    mask = RowMask(tuple(records), num_deleted)
    text = mask.to_json()
    assert text == json.dumps([num_deleted, *map(list, records)], ensure_ascii=False)
    assert num_deleted_in(text.encode()) == num_deleted
    assert RowMask.from_json(text) == mask


NUMBERS = st.integers(0, 2**63 - 1)


@given(
    st.lists(RECORDS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), NUMBERS, NUMBERS, NUMBERS)),
    TEXTS,
)
def test_texts_of_masks_are_those_of_their_objects(
    records: list[MaskRecord], drawn: list[tuple[int, int, int, int]], root: str
) -> None:
    rows = [(of % len(records), *rest) for of, *rest in drawn]
    of, *columns = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 4).T)
    found = texts_of_masks(root, records, of, *map(numbers, columns))
    assert [text.decode() for text in found.to_pylist()] == [
        RowMask((records[of]._replace(first=first, num_bytes=size),), deleted).to_json(root)
        for of, deleted, first, size in rows
    ]


@given(st.binary(max_size=40).map(lambda data: data[: len(data) // 4 * 4]), st.data())
def test_base85_of_four_bytes_each(data: bytes, drawn: st.DataObject) -> None:
    assert decode_base85(base85(data)) == data
    at = drawn.draw(st.integers(0, len(data)))
    text = base85(data)
    for bad in ("\x7f", "\u00e9", '"', "#####"):  # "#####" is more than four bytes
        with pytest.raises(ValueError, match=r"base85|ascii"):
            decode_base85(f"{text[: at // 4 * 5]}{bad}{text[at // 4 * 5 :]}")


def in_file(path: Path, rows: Any, **changes: Any) -> RowMask:
    data, (first,) = vector_file(vector_bytes(rows))
    path.write_bytes(data)
    record = MaskRecord("delta-vector", str(path), first, len(vector_bytes(rows)))
    return RowMask((record._replace(**changes),), len(rows))


def test_records_of_one_file_are_united(tmp_path: Path) -> None:
    one, other = (in_file(tmp_path / str(rows), rows) for rows in ((1, 2), (2, 5)))
    mask = RowMask((*one.records, *other.records))
    assert deleted_rows(mask, "f", 6).tolist() == [1, 2, 5]


def test_a_mask_without_records_deletes_nothing() -> None:
    assert deleted_rows(RowMask(()), "f", 6).tolist() == []


def test_a_row_that_the_file_does_not_have_is_told(tmp_path: Path) -> None:
    mask = in_file(tmp_path / "v", [1, 6])
    with pytest.raises(DataFileError, match=r"^f: deleted rows: .* 0 to 5, found 1 to 6 in \S*/v "):
        deleted_rows(mask, "f", 6)


def test_another_number_of_rows_than_the_table_says_is_told(tmp_path: Path) -> None:
    mask = in_file(tmp_path / "v", [1, 3])._replace(num_deleted=3)
    with pytest.raises(DataFileError, match=r"^f: deleted rows: expected 3, .* found 2 in \S*/v "):
        deleted_rows(mask, "f", 6)


def test_a_record_that_is_gone_is_told(tmp_path: Path) -> None:
    mask = in_file(tmp_path / "v", [1, 3])
    (tmp_path / "v").unlink()
    with pytest.raises(DataFileError, match=r"^f: deleted rows: .*/v, found no such file: restore"):
        deleted_rows(mask, "f", 6)


@pytest.mark.parametrize("offset", range(45))
def test_no_changed_byte_of_a_vector_goes_unnoticed(tmp_path: Path, offset: int) -> None:
    mask, path = in_file(tmp_path / "v", [1, 3]), tmp_path / "v"
    data = bytearray(path.read_bytes())
    assert len(data) == 45
    data[offset] ^= 1
    path.write_bytes(data)
    if offset == 0:  # The version of the file, not of the vector.
        assert deleted_rows(mask, "f", 6).tolist() == [1, 3]
        return
    with pytest.raises(DataFileError, match=r"^f: deleted rows: expected .* in \S*/v at byte 1"):
        deleted_rows(mask, "f", 6)


@pytest.mark.parametrize("num_bytes", range(1, 45))
def test_a_file_that_ends_early_is_told(tmp_path: Path, num_bytes: int) -> None:
    mask, path = in_file(tmp_path / "v", [1, 3]), tmp_path / "v"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(DataFileError, match="its size that matches its checksum"):
        deleted_rows(mask, "f", 6)


@given(st.binary(max_size=80))
def test_bytes_that_are_no_vector_are_told(data: bytes) -> None:
    for found in (data, vector_bytes([])[:4] + data):
        record = MaskRecord("delta-vector", num_bytes=len(found), text=base85(found))
        # pytest fails for any other exception.
        with contextlib.suppress(DataFileError):
            rows = deleted_rows(RowMask((record,)), "f", 100)
            assert rows.tolist() == list(BitMap64.deserialize(found[4:]))


def test_a_vector_that_declares_more_rows_than_the_file_has_is_not_expanded() -> None:
    data = vector_bytes(range(2**33))
    assert len(data) < 2_000_000
    record = MaskRecord("delta-vector", num_bytes=len(data), text=base85(data))
    with pytest.raises(DataFileError, match="a Roaring bitmap of at most 100 rows"):
        deleted_rows(RowMask((record,), 2**33), "f", 100)


@pytest.mark.parametrize(
    "changes", [{"num_bytes": 2**50}, {"num_bytes": -20}, {"num_bytes": -8}, {"first": -5}]
)
def test_a_place_that_the_file_does_not_have_is_told(tmp_path: Path, changes: Any) -> None:
    mask = in_file(tmp_path / "v", [1, 3], **changes)
    with pytest.raises(DataFileError, match=r"^f: deleted rows: expected a vector .* in \S*/v at"):
        deleted_rows(mask, "f", 6)


@pytest.mark.parametrize("first", [10**4, 2**60])
def test_a_place_behind_the_file_is_told(tmp_path: Path, first: int) -> None:
    mask = in_file(tmp_path / "v", [1, 3], first=first)
    with pytest.raises(DataFileError, match=rf"expected a vector .* in \S*/v at byte {first}"):
        deleted_rows(mask, "f", 6)


def positions_of(file: Path, name: str, **columns: Any) -> list[int]:
    pq.write_table(pa.table(columns), file, row_group_size=3)
    record = MaskRecord("iceberg-positions", str(file), text=name)
    return [int(row) for row in deleted_rows(RowMask((record,)), name, 100)]


@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
@pytest.mark.parametrize("number", [pa.int64(), pa.int32(), pa.uint64()], ids=str)
def test_positions_of_one_data_file_of_several(tmp_path: Path, type_: Any, number: Any) -> None:
    paths, at = sorted("aaaabbbbccccc"), list(range(13))
    for name in "abcd":
        columns = {"file_path": pa.array(paths).cast(type_), "pos": pa.array(at, number)}
        expected = [row for row, path in zip(at, paths, strict=True) if path == name]
        assert positions_of(tmp_path / "p", name, **columns) == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"file_path": ["a"], "pos": ["3"]}, "the columns file_path"),
        ({"file_path": [1], "pos": [3]}, "the columns file_path"),
        ({"file_path": ["a"]}, "the columns file_path"),
        ({"FILE": ["a"], "POS": [3]}, "the columns file_path"),
        ({"file_path": ["a", "b"], "pos": [None, 3]}, "a path and a position in every row"),
        ({"file_path": ["a", None], "pos": [1, 3]}, "a path and a position in every row"),
    ],
)
def test_what_is_no_position_is_told(tmp_path: Path, columns: Any, expected: str) -> None:
    with pytest.raises(
        DataFileError, match=rf"^a: deleted rows: expected {expected}.* in \S*/p at"
    ):
        positions_of(tmp_path / "p", "a", **columns)


def test_only_row_groups_that_may_have_the_data_file_are_read(tmp_path: Path) -> None:
    names = [f"file:///lake/{number:02}.parquet" for number in range(30)]
    columns = {"file_path": np.repeat(names, 3), "pos": list(range(90))}
    assert positions_of(tmp_path / "p", names[7], **columns) == [21, 22, 23]
    metadata, data = pq.read_metadata(tmp_path / "p"), bytearray((tmp_path / "p").read_bytes())
    assert metadata.num_row_groups == 30
    chunk = metadata.row_group(20).column(1)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    (tmp_path / "p").write_bytes(data)
    mask = RowMask((MaskRecord("iceberg-positions", str(tmp_path / "p"), text=names[8]),))
    assert deleted_rows(mask, names[8], 100).tolist() == [24, 25, 26]
    damaged = RowMask((MaskRecord("iceberg-positions", str(tmp_path / "p"), text=names[20]),))
    with pytest.raises(DataFileError, match="expected a Parquet file"):
        deleted_rows(damaged, names[20], 100)


def test_another_encoding_is_refused() -> None:
    data = b"\x10" + vector_bytes([1])[1:]
    record = MaskRecord("delta-vector", num_bytes=len(data), text=base85(data))
    with pytest.raises(DataFileError, match=r"the magic number 1681511377, .* in the table's log"):
        deleted_rows(RowMask((record,), 1), "f", 100)


@pytest.mark.parametrize("text", ["~~~~~", "ä", "#####"])
def test_text_that_is_no_base85_is_refused(text: str) -> None:
    record = MaskRecord("delta-vector", num_bytes=4, text=text)
    with pytest.raises(DataFileError, match="base85 text"):
        deleted_rows(RowMask((record,), 1), "f", 100)


def test_base85_is_that_of_zeromq() -> None:
    # The example of https://rfc.zeromq.org/spec/32.
    assert decode_base85("HelloWorld") == bytes.fromhex("864FD26FB559F75B")
