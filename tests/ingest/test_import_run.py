"""Whole imports: what is written, refused, continued, and done by several processes."""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import ConfigError, InputError, WorkerError
from featstore.files.listings import FileEntry
from featstore.formats.csv_rows import CsvFormat
from featstore.formats.parsed import ParsedRows
from featstore.ingest import import_run as importing
from featstore.ingest.conversion import ConvertedFile, OnRows, convert
from featstore.ingest.import_job import ImportJob, ImportSchema, import_job
from featstore.ingest.import_run import find_columns, run_import
from tests.formats.example_files import tfrecord
from tests.ingest.conftest import Rows

USERS = ["u1", "u2", "u3", "u4"]


def test_each_file_becomes_one_in_the_same_partition(log: Path, tmp_path: Path, rows: Rows) -> None:
    report = featstore.import_raw("csv", log, tmp_path / "raw")
    assert [row["user"] for row in rows(tmp_path / "raw")] == USERS
    assert sorted(
        str(path.relative_to(tmp_path / "raw")) for path in (tmp_path / "raw").rglob("*.parquet")
    ) == [
        "dt=1/part-00000.parquet",
        "dt=1/part-00001.parquet",
        "dt=2/part-00002.parquet",
    ]
    assert (report.num_rows, report.num_files, report.num_malformed) == (4, 3, 0)
    assert str(report.schema) == "inputs:\n  user: string\n  price: double"
    # Nothing is left of how it came to be.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "raw"]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == [
        "_import.json",
        "dt=1",
        "dt=2",
    ]


def test_two_values_of_a_partition_key_in_one_path_are_refused(log: Path, tmp_path: Path) -> None:
    (log / "dt=2" / "dt=3").mkdir()
    next((log / "dt=2").glob("*.csv*")).rename(log / "dt=2" / "dt=3" / "a.csv")
    with pytest.raises(InputError, match=r"dt=2/dt=3/a\.csv: expected one value of .* 'dt'"):
        featstore.import_raw("csv", log, tmp_path / "raw")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_table_of_iceberg_needs_no_import(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"prod/ads\.raw: expected files of csv, .*needs no import"
    ):
        featstore.import_raw("csv", "iceberg://prod/ads.raw", tmp_path / "raw")
    assert not list(tmp_path.iterdir())


def test_what_is_imported_is_extracted(log: Path, tmp_path: Path) -> None:
    report = featstore.import_raw("csv", log, tmp_path / "raw")
    (tmp_path / "spec.yaml").write_text(
        f"spec: 1\n{report.schema}\nkeep: [user]\n"
        "slots:\n  - {slot: 1, name: price, op: identity, of: price}\n"
    )
    done = featstore.extract(
        tmp_path / "spec.yaml", tmp_path / "raw", tmp_path / "table", partition_from_path=["dt"]
    )
    assert done.num_rows == 4
    assert sorted(featstore.open_table(tmp_path / "table").to_arrow()["user"].to_pylist()) == USERS


@pytest.mark.parametrize("num_workers", [1, 2])
def test_several_processes_write_the_same(
    log: Path, tmp_path: Path, rows: Rows, num_workers: int
) -> None:
    (log / "dt=1" / "a.csv").write_text("user,price\nu1,1.5\nbad\nu2,2.5\n")
    report = featstore.import_raw(
        "csv", log, tmp_path / "raw", num_workers=num_workers, max_malformed=1
    )
    assert [row["user"] for row in rows(tmp_path / "raw")] == USERS
    assert report.examples == (f"{log}/dt=1/a.csv, row 3: expected 2 fields, found 1",)


def test_progress_tells_files_and_rows(log: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    featstore.import_raw("csv", log, tmp_path / "raw", progress=lambda *of: seen.append(of))
    assert seen[0][:2] == (0, 3)
    assert seen[-1] == (3, 3, 4)
    assert seen == sorted(seen)


def test_the_columns_are_told_before_any_row_is_read(log: Path, tmp_path: Path) -> None:
    def stop(schema: ImportSchema) -> None:
        assert schema.columns == {"user": "string", "price": "double"}
        assert not list(tmp_path.glob("_import*"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        featstore.import_raw("csv", log, tmp_path / "raw", on_schema=stop)
    assert not (tmp_path / "raw").exists()


def test_an_equal_import_does_nothing(log: Path, tmp_path: Path) -> None:
    first = featstore.import_raw("csv", log, tmp_path / "raw")
    (tmp_path / "raw" / "dt=2" / "part-00002.parquet").unlink()  # would be made anew otherwise
    again = featstore.import_raw("csv", log, tmp_path / "raw")
    assert (first.imported, again.imported) == (True, False)
    assert again.num_rows == 4
    assert not list((tmp_path / "raw" / "dt=2").iterdir())
    assert str(again).startswith("nothing to do: an equal import was done before: 4 rows of 3")


@pytest.mark.parametrize("change", ["input", "types", "options", "not an import"])
def test_another_output_is_left_as_it_is(log: Path, tmp_path: Path, change: str) -> None:
    raw = tmp_path / "raw"
    if change == "not an import":
        raw.mkdir()
        (raw / "mine").touch()
    else:
        featstore.import_raw("csv", log, raw)
    if change == "input":
        (log / "dt=2" / "d.csv").write_text("user,price\nu5,5.5\n")
    columns = {"price": "string"} if change == "types" else {}
    nulls = ["NA"] if change == "options" else []
    before = sorted(raw.rglob("*"))
    with pytest.raises(InputError, match="raw exists, and is not what this import would write; it"):
        featstore.import_raw("csv", log, raw, columns=columns, nulls=nulls)
    assert sorted(raw.rglob("*")) == before


def test_an_empty_directory_is_no_output_yet(log: Path, tmp_path: Path, rows: Rows) -> None:
    (tmp_path / "raw").mkdir()
    featstore.import_raw("csv", log, tmp_path / "raw")
    assert [row["user"] for row in rows(tmp_path / "raw")] == USERS


def test_an_import_that_ended_early_goes_on_where_it_was(
    log: Path, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[str] = []
    most = 2

    def some(
        job: ImportJob, schema: pa.Schema, source: FileEntry, target: str, on_rows: OnRows
    ) -> ConvertedFile:
        if len(converted) == most:
            raise KeyboardInterrupt
        converted.append(source.name)
        return convert(job, schema, source, target, on_rows)

    monkeypatch.setattr(importing, "convert", some)
    with pytest.raises(KeyboardInterrupt):
        featstore.import_raw("csv", log, tmp_path / "raw")
    assert not (tmp_path / "raw").exists()
    assert converted == ["dt=1/a.csv", "dt=1/b.csv"]
    most = 3
    report = featstore.import_raw("csv", log, tmp_path / "raw")
    assert converted == ["dt=1/a.csv", "dt=1/b.csv", "dt=2/c.csv"]
    assert (report.num_rows, [row["user"] for row in rows(tmp_path / "raw")]) == (4, USERS)


def test_malformed_rows_beyond_the_bound_are_refused_and_those_within_are_told(
    log: Path, tmp_path: Path, rows: Rows
) -> None:
    (log / "dt=1" / "a.csv").write_text("user,price\nu1,1.5\nbad\nu2,2.5\n")
    (log / "dt=2" / "c.csv").write_text("user,price\nu4,4.5\nworse\n")
    with pytest.raises(
        InputError,
        match=r"expected at most 0 malformed rows, found 1 up to here, such as .*a\.csv, row 3: exp",
    ):
        featstore.import_raw("csv", log, tmp_path / "raw")
    with pytest.raises(InputError, match="expected at most 1 malformed rows, found 2 up to here"):
        featstore.import_raw("csv", log, tmp_path / "raw", max_malformed=1)
    assert not (tmp_path / "raw").exists()
    report = featstore.import_raw("csv", log, tmp_path / "raw", max_malformed=2)
    assert report.num_malformed == 2
    assert "2 malformed rows are left out, such as" in str(report)
    assert [row["user"] for row in rows(tmp_path / "raw")] == USERS


def test_a_damaged_record_is_told_by_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    data = tfrecord({"a": [i]} for i in range(5))
    size = len(data) // 5
    changed = bytearray(data)
    changed[2 * size + 14] ^= 1
    path = tmp_path / "log" / "x.tfrecord"
    path.write_bytes(changed)
    with pytest.raises(InputError, match=r"x\.tfrecord, record 3: its bytes do not match their"):
        featstore.import_raw("tfrecord", tmp_path / "log", tmp_path / "raw")
    path.write_bytes(data[: 3 * size + 5])
    with pytest.raises(InputError, match=rf"x\.tfrecord: record 4, at byte {3 * size}: expected a"):
        featstore.import_raw("tfrecord", tmp_path / "log", tmp_path / "raw", max_malformed=100)
    path.write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(
        InputError, match=r"x\.tfrecord: cannot be read \(gzip: Compressed file ended"
    ):
        featstore.import_raw("tfrecord", tmp_path / "log", tmp_path / "raw", max_malformed=100)
    assert sorted(other.name for other in tmp_path.iterdir()) == ["log"]


def test_columns_that_only_later_rows_have_are_told(tmp_path: Path) -> None:
    lines = [{"a": 1}, {"a": 2}, {"a": 3, "late": 1}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = featstore.import_raw("json", tmp_path / "x.jsonl", tmp_path / "raw", sample_rows=2)
    assert report.unknown == {"late": 1}
    assert "columns that no sampled row has are left out: late in 1 rows (--sample-rows)" in str(
        report
    )


def test_bytes_of_another_encoding_are_told(tmp_path: Path, rows: Rows) -> None:
    (tmp_path / "x.csv").write_bytes("a,b\n1,é\n".encode("latin-1"))
    report = featstore.import_raw("csv", tmp_path / "x.csv", tmp_path / "raw")
    assert report.num_replaced == 1
    assert "bytes that are not of the files' encoding became U+FFFD 1 times (--encoding)" in str(
        report
    )
    featstore.import_raw("csv", tmp_path / "x.csv", tmp_path / "right", encoding="latin-1")
    assert rows(tmp_path / "right") == [{"a": 1, "b": "é"}]


def test_a_dry_run_tells_the_columns(log: Path, tmp_path: Path) -> None:
    job = import_job("csv", log, tmp_path / "raw", columns={"price": "float"})
    found = find_columns(job)
    assert found.as_dict() == {
        "columns": {"user": "string", "price": "float"},
        "inputs": {"user": "string", "price": "double"},
    }
    assert not (tmp_path / "raw").exists()


def test_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no files at .*nowhere: expected a file, a directory or"):
        featstore.import_raw("csv", tmp_path / "nowhere", tmp_path / "raw")


def test_a_number_of_workers_is_at_least_one(log: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_workers: expected an integer of 1 or more, found 0"):
        featstore.import_raw("csv", log, tmp_path / "raw", num_workers=0)


@dataclass(frozen=True, kw_only=True)
class DeadlyFormat(CsvFormat):
    """Ends the process that reads a file `b.csv`, as the kernel does if memory runs out."""

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        for parsed in super().read(source, schema):
            if "u3" in parsed.batch["user"].to_pylist():
                os._exit(1)
            yield parsed


def test_a_process_that_dies_is_an_error_and_nothing_is_published(
    log: Path, tmp_path: Path
) -> None:
    job = ImportJob(format=DeadlyFormat(), input_url=str(log), output_url=str(tmp_path / "raw"))
    with pytest.raises(WorkerError, match="a process that converts files died, perhaps of too lit"):
        run_import(job, num_workers=2)
    assert not (tmp_path / "raw").exists()


def test_a_large_file_becomes_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("featstore.ingest.table_output.GROUP_ROWS", 1_000)
    monkeypatch.setattr("featstore.formats.csv_rows.BLOCK_BYTES", 2_000)
    (tmp_path / "x.csv").write_text("a\n" + "".join(f"{i}\n" for i in range(5_000)))
    featstore.import_raw("csv", tmp_path / "x.csv", tmp_path / "raw")
    (path,) = (tmp_path / "raw").glob("*.parquet")
    file = pq.ParquetFile(path)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert len(sizes) > 2
    assert all(1_000 <= size < 2_000 for size in sizes[:-1])
    assert file.read()["a"].to_pylist() == list(range(5_000))


def test_ids_with_zeros_after_the_sample_are_told_with_the_row_and_kept_by_a_type(
    tmp_path: Path, rows: Rows
) -> None:
    (tmp_path / "x.csv").write_text("zip,late\n501,\n502,\n00501,7\n")
    source, raw = tmp_path / "x.csv", tmp_path / "raw"
    with pytest.raises(InputError, match=r"row 4: column 'zip': expected long, found '00501'"):
        featstore.import_raw("csv", source, raw, sample_rows=2)
    report = featstore.import_raw("csv", source, raw, sample_rows=2, max_malformed=1)
    assert (report.num_rows, report.num_malformed) == (2, 1)
    assert "no sampled row has a value of late (--column, --sample-rows)" in str(report)
    assert "# no sampled row has a value of late" in str(report.schema)
    typed = tmp_path / "typed"
    featstore.import_raw(
        "csv", source, typed, sample_rows=2, columns={"zip": "string", "late": "long"}
    )
    assert rows(typed)[-1] == {"zip": "00501", "late": 7}
    assert not pq.read_schema(typed / "part-00000.parquet").field("zip").metadata


@pytest.mark.parametrize(("value", "late"), [("null", "7"), ("[]", "[7]"), ('{"b": null}', "7.5")])
def test_what_comes_after_a_sample_without_values_is_text_or_malformed(
    tmp_path: Path, value: str, late: str
) -> None:
    (tmp_path / "x.json").write_text(f'{{"a": {value}}}\n' * 2 + f'{{"a": {late}}}\n')
    with pytest.raises(InputError, match=r"line 3: .* changed from"):
        featstore.import_raw("json", tmp_path / "x.json", tmp_path / "raw", sample_rows=2)
    (tmp_path / "x.rec").write_bytes(tfrecord([{"a": []}, {"a": []}, {"a": [7]}]))
    with pytest.raises(InputError, match=r"record 3: .* expected string, found a int64_list"):
        featstore.import_raw("tfrecord", tmp_path / "x.rec", tmp_path / "raw", sample_rows=2)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("id,n\n,1\n1234567890123456789,\n", [None, 1234567890123456789]),
        ("id,n\n135217135789158401,\n1352171357E+5,\n", ["135217135789158401", "1352171357E+5"]),
        ("id\n\n1111111111111111111\n", [1111111111111111111]),
        ('id,n\n"001",1\n"002",2\n', ["001", "002"]),
    ],
)
def test_ids_of_public_reports_stay_as_they_are_written(
    tmp_path: Path, rows: Rows, text: str, ids: list[object]
) -> None:
    (tmp_path / "x.csv").write_text(text)
    featstore.import_raw("csv", tmp_path / "x.csv", tmp_path / "raw")
    assert [row["id"] for row in rows(tmp_path / "raw")] == ids
