"""Raw rows in CSV and JSON lines: the same table as from Parquet, or a clear refusal."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
import featstore.explore.replay
from featstore.api import fit
from featstore.base.errors import InputError
from featstore.explore.preview import preview
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.raw import Unit, find_raw_files, plan_units
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask
from featstore.formats.text_files import format_of, list_raw_files
from featstore.spec.parse import load_spec

SPEC = """
spec: 1
inputs:
  user: string
  price: double
  clicked: long
  tags: {type: list<string>, optional: true}
labels: {click: clicked}
keep: [user]
slots:
  - {slot: 101, name: user_id, op: hash, of: user}
  - {slot: 102, name: price, op: log1p, of: price}
  - {slot: 103, name: tags, op: hash, of: tags}
"""
ROWS: list[dict[str, Any]] = [
    {"user": "007", "price": 1.5, "clicked": 1, "tags": ["a", "b"], "more": "x"},
    {"user": "b, c", "price": None, "clicked": 0, "tags": [], "more": None},
    {"user": None, "price": 2.0, "clicked": None, "tags": None, "more": "y"},
]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        kinds = {"user": pa.string(), "price": pa.float64(), "clicked": pa.int64()}
        kinds |= {"tags": pa.list_(pa.string()), "more": pa.string()}
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))), path)
    elif path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    elif path.suffix in (".json", ".jsonl", ".ndjson"):
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        names = [name for name in rows[0] if name != "tags"]
        with path.open("w", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.DictWriter(file, names, delimiter=delimiter, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    return path


def rows_of(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = featstore.open_table(table).to_arrow().to_pylist()
    return found


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.json", "x.jsonl", "x.ndjson", "x.jsonl.gz"])
@pytest.mark.parametrize("what", ["file", "directory", "glob"])
def test_text_makes_the_table_that_parquet_makes(
    tmp_path: Path, spec: Path, name: str, what: str
) -> None:
    path = write(tmp_path / "raw" / name)
    with_tags = "json" in name
    expected = [row if with_tags else row | {"tags": None} for row in ROWS]
    featstore.extract(spec, write(tmp_path / "x.parquet", expected), tmp_path / "expected")
    given = {"file": path, "directory": path.parent, "glob": path.parent / "x*"}[what]
    report = featstore.extract(spec, given, tmp_path / "table")
    assert rows_of(tmp_path / "table") == rows_of(tmp_path / "expected")
    again = featstore.extract(spec, given, tmp_path / "table")
    assert (report.committed, again.committed) == (True, False)


def test_a_directory_with_parquet_is_read_as_before(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.csv", "_c.csv"):
        write(tmp_path / name)
    assert [file.name for file in list_raw_files(str(tmp_path))] == ["a.parquet"]
    (tmp_path / "a.parquet").unlink()
    assert [file.name for file in list_raw_files(str(tmp_path))] == ["b.csv"]


def test_several_files_are_units_whose_rows_are_known(tmp_path: Path, spec: Path) -> None:
    for i in range(3):
        write(tmp_path / "raw" / f"{i}.csv", ROWS * 4)
    declared = load_spec(spec).inputs
    files = find_raw_files(str(tmp_path / "raw"), {}, (), declared)
    assert [file.row_groups for file in files] == [(12,)] * 3
    units = plan_units(files, 24)
    assert [[raw.num_rows for raw in unit.ranges] for unit in units] == [[12, 12], [12]]


def test_days_replays_and_fits_read_text_too(tmp_path: Path, spec: Path) -> None:
    for day in (1, 2):
        write(tmp_path / "raw" / f"dt=2026-11-0{day}" / "x.jsonl")
    report = featstore.extract(
        spec,
        f"{tmp_path}/raw/dt={{dt}}",
        tmp_path / "table",
        days="2026-11-01..2026-11-02",
    )
    assert report.num_extracted == 2
    assert featstore.explore.replay.replay(
        str(spec), str(tmp_path / "raw"), str(tmp_path / "table"), partition_from_path=["dt"]
    ).ok
    (tmp_path / "fitted.yaml").write_text(
        "spec: 1\ninputs: {price: double}\nslots:\n"
        "  - {slot: 1, name: p, op: quantile_bucketize, of: price, num_buckets: 2}\n"
    )
    fit(tmp_path / "fitted.yaml", tmp_path / "raw" / "dt=2026-11-01" / "x.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "x.csv",
            "user,price,clicked\na,1,0\nb,x,1\n",
            "row 3: column 'price': expected double, fo",
        ),
        ("x.csv", "user,price,clicked\na,1\n", "row 2: expected 3 fields, found 2; correct it, or"),
        (
            "x.csv",
            "user,price\na,1\n",
            "missing input column: expected 'clicked'; .*found user, price",
        ),
        (
            "x.csv",
            "user,price,clicked,tags\na,1,0,x\n",
            "column 'tags': a CSV field cannot be list<",
        ),
        (
            "x.jsonl",
            '{"user": "a"}\n{"user": 1}\n',
            'line 2: .*; found {"user": 1}; correct it, or',
        ),
        ("x.jsonl", '{"user": "a"}\n', "missing 2 input columns: expected 'price', 'clicked'"),
        (
            "x.csv",
            "user,price,clicked\n\udcff,1,0\n",
            "found bytes that are not UTF-8; correct it, or",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_refused_before_anything_is_written(
    tmp_path: Path, spec: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=rf"{name}.*{said}"):
        featstore.extract(spec, tmp_path / name, tmp_path / "table")
    assert not (tmp_path / "table").exists()


def test_a_column_of_json_that_comes_late_is_there(
    tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featstore.formats.text_files._SAMPLE_ROWS", 1)
    lines: list[dict[str, Any]] = [{"user": "a", "clicked": 1}, {"price": 1.0}]
    write(tmp_path / "x.jsonl", lines)
    featstore.extract(spec, tmp_path / "x.jsonl", tmp_path / "table")
    assert [row["click"] for row in rows_of(tmp_path / "table")] == [1.0, None]


def test_files_without_rows_lack_no_column(tmp_path: Path, spec: Path) -> None:
    write(tmp_path / "raw" / "a.csv")
    (tmp_path / "raw" / "b.csv").touch()
    (tmp_path / "raw" / "c.csv").write_text("user,price,clicked\n")
    assert featstore.extract(spec, tmp_path / "raw", tmp_path / "table").num_rows == 3


def test_a_partition_key_that_disagrees_is_refused(tmp_path: Path, spec: Path) -> None:
    write(tmp_path / "x.csv")
    with pytest.raises(InputError, match="the raw column 'more' holds 'x', the partition says 'z'"):
        featstore.extract(spec, tmp_path / "x.csv", tmp_path / "table", partition={"more": "z"})


class OtherRunner:
    """Stands for a runner of other processes, such as Spark's."""

    def __call__(
        self, task: UnitTask, units: Sequence[Unit], progress: Progress
    ) -> list[UnitReport]:  # pragma: no cover
        raise AssertionError


def test_text_is_refused_where_units_run_elsewhere(tmp_path: Path, spec: Path) -> None:
    job = ExtractJob(
        spec=load_spec(spec),
        input_url=str(write(tmp_path / "x.csv")),
        table_url=str(tmp_path / "table"),
    )
    said = r"x\.csv is text, which is read without Spark only: import it to Parquet first \(featsto"
    with pytest.raises(InputError, match=said):
        extract_files(job, runner=OtherRunner())
    assert extract_files(job, runner=LocalRunner()).num_rows == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.csv.gz", "csv"), ("a.tsv", "csv"), ("a.json", "json"), ("a.txt", None), ("a.gz", None)],
)
def test_a_format_is_told_by_the_name(name: str, expected: str | None) -> None:
    found = format_of(name)
    assert (None if found is None else found.name) == expected


def test_a_preview_reads_text_too(tmp_path: Path, spec: Path) -> None:
    found = preview(str(spec), str(write(tmp_path / "x.csv")))
    assert found.rows.num_rows == 3


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
def test_numbers_as_text_are_read_as_on_error_says(spec: Path, tmp_path: Path, name: str) -> None:
    texts = ["1.5", "1,234.5", "2.0"]
    rows = [row | {"price": text} for row, text in zip(ROWS, texts, strict=True)]
    if name == "x.parquet":
        kinds = {"user": pa.string(), "price": pa.string(), "clicked": pa.int64()}
        (tmp_path / "raw").mkdir()
        known = [{key: row[key] for key in kinds} for row in rows]
        table = pa.Table.from_pylist(known, pa.schema(list(kinds.items())))
        pq.write_table(table, tmp_path / "raw" / name)
    else:
        write(tmp_path / "raw" / name, rows)
    with pytest.raises(InputError, match="text: true"):
        featstore.extract(spec, tmp_path / "raw", tmp_path / "refused")
    price = "price: {type: double, text: true, on_error: skip}"
    spec.write_text(SPEC.replace("price: double", price))
    table_url = tmp_path / "table"
    report = featstore.extract(spec, tmp_path / "raw", table_url)
    assert report.num_rows_skipped == 1
    assert sorted(row["user"] or "" for row in rows_of(table_url)) == ["", "007"]


def test_numbers_of_json_where_text_is_declared_are_told_so(spec: Path, tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [row | {"price": 12.5} for row in ROWS])
    spec.write_text(SPEC.replace("price: double", "price: {type: double, text: true}"))
    with pytest.raises(
        InputError, match=r"string to number.*; JSON lines have strings where"
    ) as it:
        featstore.extract(spec, tmp_path / "x.jsonl", tmp_path / "table", no_partition=True)
    assert "text: true" not in str(it.value)
