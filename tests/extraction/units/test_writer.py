import gc
import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.writer import DataFileReport, open_data_file
from featstore.table.metadata import FileMetadata

GOLDEN = Path(__file__).parents[2] / "golden" / "file_metadata.json"
METADATA = FileMetadata(spec_hash="5f" * 32, spec_version=1)
ONE_SLOT = SlotSchema(slots=(Slot(name="a", kind=SlotKind.ID, number=1, op="hash"),))


def write_ids(path: Path, batches: list[int], rows_per_row_group: int) -> DataFileReport:
    first = 0
    with open_data_file(str(path), ONE_SLOT, METADATA, rows_per_row_group) as writer:
        for num_rows in batches:
            ids = pa.array(np.arange(first, first + num_rows))
            writer.write(pa.RecordBatch.from_arrays([ids], schema=ONE_SLOT.to_arrow()))
            first += num_rows
        return writer.close()


def row_groups(path: Path) -> list[int]:
    footer = pq.read_metadata(path)
    return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 40))
def test_row_groups_are_exact_whatever_the_sizes_of_the_batches(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], size: int
) -> None:
    path = tmp_path_factory.mktemp("w") / "a.parquet"
    written = write_ids(path, batches, size)
    num_rows = sum(batches)
    whole, rest = divmod(num_rows, size)
    assert row_groups(path) == [size] * whole + [rest] * (rest > 0) or (
        num_rows == 0 and row_groups(path) in ([], [0])
    )
    assert pq.read_table(path)["a"].to_pylist() == list(range(num_rows))
    assert written.num_rows == num_rows


def test_equal_rows_give_equal_bytes_whatever_the_sizes_of_the_batches(tmp_path: Path) -> None:
    reports = [
        write_ids(tmp_path / f"{i}.parquet", cut, 30)
        for i, cut in enumerate(([100], [1, 98, 1], [33, 67]))
    ]
    assert len(set(reports)) == 1
    data = (tmp_path / "0.parquet").read_bytes()
    assert reports[0] == DataFileReport(num_rows=100, size_bytes=len(data), crc32=zlib.crc32(data))


def test_other_rows_or_another_order_give_another_checksum(tmp_path: Path) -> None:
    assert (
        write_ids(tmp_path / "a.parquet", [10], 5).crc32
        != write_ids(tmp_path / "b.parquet", [11], 5).crc32
    )


def interrupted_after(path: Path, num_rows: int) -> None:
    with open_data_file(str(path), ONE_SLOT, METADATA, 10) as writer:
        writer.write(
            pa.RecordBatch.from_arrays([pa.array(range(num_rows))], schema=ONE_SLOT.to_arrow())
        )
        raise KeyboardInterrupt


@pytest.mark.parametrize("num_rows", [3, 100])
def test_a_file_that_fails_half_way_never_appears(tmp_path: Path, num_rows: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(tmp_path / "a.parquet", num_rows)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_other_columns_is_refused_and_nothing_appears(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="expected the data file's columns:\na: int64 not null"),
        open_data_file(str(tmp_path / "a"), ONE_SLOT, METADATA, 10) as writer,
    ):
        writer.write(pa.record_batch({"b": [1]}))
    assert list(tmp_path.iterdir()) == []


def test_a_null_where_a_slot_has_none_is_refused_and_nothing_appears(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=ONE_SLOT.to_arrow())
    with (
        pytest.raises(ValueError, match="column 'a': expected no nulls, found 1"),
        open_data_file(str(tmp_path / "a"), ONE_SLOT, METADATA, 10) as writer,
    ):
        writer.write(batch)
    assert list(tmp_path.iterdir()) == []


def test_the_first_row_group_decides_about_dictionaries(tmp_path: Path) -> None:
    schema = SlotSchema(
        slots=(
            Slot(name="few", kind=SlotKind.ID, shape=(None,)),
            Slot(name="many", kind=SlotKind.ID),
        )
    )
    fields = schema.to_arrow()
    columns = [pa.array([[1, 2]] * 100, fields.field("few").type), pa.array(range(100))]
    with open_data_file(str(tmp_path / "a.parquet"), schema, METADATA, 50) as writer:
        writer.write(pa.RecordBatch.from_arrays(columns, schema=fields))
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(1)
    assert [group.column(i).has_dictionary_page for i in range(2)] == [True, False]


def test_slots_lie_in_the_file_in_declared_order(tmp_path: Path) -> None:
    names = ["z", "a", "m", "b"]
    schema = SlotSchema(
        slots=tuple(
            Slot(name=n, kind=SlotKind.ID, number=9 - i, shape=(None,) if i % 2 else ())
            for i, n in enumerate(names)
        ),
        labels=(pa.field("click", pa.int64()),),
        kept=(pa.field("about", pa.string()),),
    )
    rows = {"z": 1, "a": [1], "m": 2, "b": [2], "click": 0, "about": "x"}
    with open_data_file(str(tmp_path / "a.parquet"), schema, METADATA, 10) as writer:
        writer.write(pa.RecordBatch.from_pylist([rows] * 25, schema.to_arrow()))
    footer = pq.read_metadata(tmp_path / "a.parquet")
    for index in range(footer.num_row_groups):
        chunks = [footer.row_group(index).column(i) for i in range(footer.num_columns)]
        assert [chunk.path_in_schema.partition(".")[0] for chunk in chunks] == [
            *names,
            "click",
            "about",
        ]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        sizes = [chunk.total_compressed_size for chunk in chunks]
        assert starts[1:] == [start + size for start, size in zip(starts, sizes, strict=True)][:-1]


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_a_file_is_compressed_as_asked(tmp_path: Path, compression: str) -> None:
    with open_data_file(str(tmp_path / "a.parquet"), ONE_SLOT, METADATA, 10, compression) as writer:
        writer.write(pa.RecordBatch.from_arrays([pa.array(range(25))], schema=ONE_SLOT.to_arrow()))
    assert (
        pq.read_metadata(tmp_path / "a.parquet").row_group(2).column(0).compression
        == compression.upper()
    )
    assert pq.read_table(tmp_path / "a.parquet")["a"].to_pylist() == list(range(25))


def describe(path: Path) -> dict[str, object]:
    """The columns as a reader in any language sees them: name, field id, repetition and type, from
    the Parquet schema.
    """
    file = pq.ParquetFile(path)
    leaves = [file.schema.column(i) for i in range(len(file.schema))]
    fields = file.schema_arrow
    return {
        "file": json.loads(file.metadata.metadata[b"featstore"]),
        "compression": file.metadata.row_group(0).column(0).compression,
        "fields": {
            field.name: {
                "metadata": {
                    key.decode(): value.decode()
                    for key, value in sorted((field.metadata or {}).items())
                },
                "nullable": field.nullable,
                "type": str(field.type),
            }
            for field in fields
        },
        "leaves": {
            leaf.path: [leaf.physical_type, leaf.max_definition_level, leaf.max_repetition_level]
            for leaf in leaves
        },
    }


def test_the_metadata_of_a_data_file_matches_the_golden_file(tmp_path: Path) -> None:
    schema = SlotSchema(
        slots=(
            Slot(name="user", kind=SlotKind.ID, number=101, op="hash"),
            Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=102, op="hash"),
            Slot(name="price", kind=SlotKind.FLOAT, number=103, op="log1p"),
            Slot(name="delays", kind=SlotKind.FLOAT, shape=(None,), number=104, op="identity"),
            Slot(name="place", kind=SlotKind.FLOAT, shape=(2,), number=105, op="identity"),
        ),
        labels=(pa.field("click", pa.int64()),),
        weight=pa.field("importance", pa.float64()),
        kept=(pa.field("request", pa.string()),),
    )
    missing = {
        "user": 0,
        "tags": [0],
        "price": np.nan,
        "delays": [np.nan],
        "place": [np.nan, np.nan],
    }
    row = missing | {"click": None, "importance": None, "request": None}
    with open_data_file(str(tmp_path / "a.parquet"), schema, METADATA, 10) as writer:
        writer.write(pa.RecordBatch.from_pylist([row], schema.to_arrow()))
    found = json.dumps(describe(tmp_path / "a.parquet"), indent=1, sort_keys=True) + "\n"
    assert found == GOLDEN.read_text()
