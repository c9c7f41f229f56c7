"""The plain workloads of the loader's benchmark are what its page says."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.table.open import open_snapshot
from loader_parts.plain_workload import CARDINALITIES, DLRM, LABEL, PlainWorkload
from loader_parts.reading import checksum, featstore, floor, from_arrow


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return PlainWorkload(num_files=1).write(tmp_path_factory.mktemp("plain"))


def test_columns_have_no_nulls_and_the_named_cardinalities(paths: list[str]) -> None:
    rows = pq.read_table(paths[0])
    assert rows.num_columns == 201
    assert [rows[name].null_count for name in rows.column_names] == [0] * 201
    ids = [name for name in rows.column_names if rows[name].type == pa.int64()]
    counts = [len(rows[name].unique()) for name in ids]
    assert min(counts) == min(CARDINALITIES)
    assert max(counts) > 30_000  # of 50,000 draws out of a million


def test_pages_of_lists_with_many_ids_fall_back_to_plain(paths: list[str]) -> None:
    metadata = pq.ParquetFile(paths[0]).metadata
    assert metadata.num_row_groups == 1
    chunks = [metadata.row_group(0).column(number) for number in range(metadata.num_columns)]
    sizes = {chunk.path_in_schema: chunk.total_uncompressed_size for chunk in chunks}
    overflowed = [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.has_dictionary_page and chunk.data_page_offset - chunk.dictionary_page_offset > 1e6
    ]
    read = set(PlainWorkload().columns)
    assert {name.partition(".")[0] for name in overflowed} & read
    # A plain page holds eight bytes a value, indices at most two and a half.
    assert all(sizes[name] > 6 * 8 * 50_000 for name in overflowed)


def test_dlrm_has_200_flat_columns_in_row_groups_of_8192_and_reads_40(tmp_path: Path) -> None:
    assert DLRM.num_rows > 1_000_000
    (path,) = replace(DLRM, num_files=1, rows_per_file=20_000).write(tmp_path)
    metadata, schema = pq.read_metadata(path), pq.read_schema(path)
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert sizes == [8_192, 8_192, 20_000 - 2 * 8_192]
    assert len(schema) == 200
    assert {str(field.type) for field in schema} == {"int64", "float"}
    *slots, label = DLRM.columns
    assert Counter(str(schema.field(name).type) for name in slots) == {"int64": 26, "float": 13}
    assert (label, schema.field(label).type) == (LABEL, pa.float32())
    chunks = [metadata.row_group(0).column(number) for number in range(200)]
    assert {chunk.compression for chunk in chunks} == {"SNAPPY"}
    assert all(chunk.has_dictionary_page for chunk in chunks)


def test_files_are_the_same_each_time_and_smaller_is_fewer_files(tmp_path: Path) -> None:
    workload = PlainWorkload(num_files=2, rows_per_file=100, num_columns=50)
    assert workload.rows_of(1).equals(workload.rows_of(1))
    assert not workload.rows_of(0).equals(workload.rows_of(1))
    assert len(workload.write(tmp_path)) == 2
    smaller = workload.smaller(2)
    assert smaller.num_rows == 100
    assert pq.read_table(smaller.write(tmp_path)[0]).equals(workload.rows_of(0))


def test_the_loader_reads_what_the_floor_reads(tmp_path: Path) -> None:
    workload = PlainWorkload(num_files=2, rows_per_file=1_000)
    paths = workload.write(tmp_path)
    assert workload.columns[-1] == LABEL
    read = featstore(open_snapshot(str(Path(paths[0]).parent)))
    expected = checksum(from_arrow(floor(paths, workload.columns, 0)))
    assert checksum(read(paths, workload.columns, 512)) == expected
    assert expected["rows"] == workload.num_rows
