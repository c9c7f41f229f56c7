"""Malformed values on Spark: file input and DataFrame input do what this process does, and name the
same rows.
"""

import decimal
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import ArithmeticException

from featstore.base.errors import InputError, OperatorError
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.spec.parse import load_spec
from featstore.table.delta import open_delta

TEXTS = st.sampled_from([None, b"a", "é".encode(), b"\xff"])
ROWS = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "tags": st.none() | st.lists(TEXTS, max_size=2),
        "days": st.sampled_from([None, 1.0, 0.5, float("nan"), float("inf")]),
        "items": st.none() | st.lists(st.just(1), max_size=2),
        "prices": st.none() | st.lists(st.just(0.5), max_size=2),
    }
)
SCHEMA = {
    "id": pa.int64(),
    "text": pa.binary(),
    "tags": pa.list_(pa.binary()),
    "days": pa.float64(),
    "items": pa.list_(pa.int64()),
    "prices": pa.list_(pa.float64()),
    "wrong": pa.list_(pa.int64()),
}
TYPES = {
    "text": "string",
    "tags": "list<string>",
    "days": "long",
    "items": "list<long>",
    "prices": "list<double>",
    "wrong": "long",
}


def document(policies: dict[str, str]) -> dict[str, Any]:
    inputs = {name: {"type": text, "on_error": policies.get(name)} for name, text in TYPES.items()}
    return {
        "spec": 1,
        "inputs": {"id": "long", "gone": {"type": "string", "optional": True}, **inputs},
        "keep": ["id", "gone", *TYPES],
        "sequences": {"events": {"of": ["items", "prices"]}},
        "slots": [
            {"slot": 1, "name": "f_text", "op": "hash", "of": "text"},
            {"slot": 2, "name": "f_items", "op": "hash", "of": "items"},
        ],
        "output": {"rows_per_row_group": 4, "rows_per_file": 1000},
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("malformed")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Files of at most 20 rows, in row groups of 5."""
    path.mkdir()
    raw = pa.Table.from_pylist(
        [{"id": number, "wrong": None, **row} for number, row in enumerate(rows)], pa.schema(SCHEMA)
    )
    for i in range(0, len(rows), 20):
        pq.write_table(raw.slice(i, 20), path / f"{i:03}.parquet", row_group_size=5)


def rows_of(report: ExtractReport) -> list[dict[str, Any]]:
    files = open_delta(report.table_url).data_files
    found = [
        row for file in files for row in pq.read_table(file.url, partitioning=None).to_pylist()
    ]
    return sorted(found, key=lambda row: row["id"])


def rejects_in(path: Path) -> list[tuple[Any, ...]]:
    """The rejected rows by their id: a query knows no files, and their rows."""
    *lines, last = map(json.loads, path.read_text().splitlines())
    assert last == {"num_rows": len(lines), "num_listed": len(lines), "complete": True}
    found = ((of["values"]["id"], of["skipped"], of["reasons"]) for of in lines)
    return sorted(found, key=lambda row: row[0])


numbers = iter(range(10**6))


@settings(max_examples=5)
@given(
    st.lists(ROWS, min_size=1, max_size=30),
    st.fixed_dictionaries({name: st.sampled_from(["null", "skip"]) for name in TYPES}),
)
def test_every_engine_leaves_out_the_same_rows_and_reports_the_same(
    spark: Any, directory: Path, rows: list[dict[str, Any]], policies: dict[str, str]
) -> None:
    home = directory / str(next(numbers))
    home.mkdir()
    write(home / "raw", [{"text": b"good", "days": 1.0}, *rows])
    job = ExtractJob(
        spec=load_spec(document(policies)),
        input_url=str(home / "raw"),
        table_url=str(home / "here"),
        rejects=str(home / "here.jsonl"),
    )

    def on(engine: str) -> ExtractJob:
        return replace(job, table_url=str(home / engine), rejects=str(home / f"{engine}.jsonl"))

    here = extract_files(job)
    there = extract_files(on("spark"), runner=SparkRunner(spark))
    queried = extract_dataframe(on("query"), spark.read.parquet(job.input_url))
    same = [str(rows_of(report)) for report in (here, there, queried)]
    assert same[0] == same[1] == same[2]
    assert {report.num_rows_skipped for report in (here, there, queried)} == {
        1 + len(rows) - here.num_rows
    }
    assert here.counts == there.counts == queried.counts
    assert here.examples == there.examples
    assert {example.source.partition(" ")[0] for example in queried.examples} == {"DataFrame,"}
    assert (home / "here.jsonl").read_bytes() == (home / "spark.jsonl").read_bytes()
    assert rejects_in(home / "here.jsonl") == rejects_in(home / "query.jsonl")
    assert here.counts["gone: column absent"] == 1 + len(rows)


def test_all_rows_skipped_leave_no_table_on_spark(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "raw", [{"text": b"\xff"}] * 3)
    job = ExtractJob(
        spec=load_spec(document({"text": "skip"})),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "t"),
    )
    with pytest.raises(
        InputError,
        match=r"^all 3 rows are skipped as malformed \(text: invalid utf-8 b'\\xff' \(.*row 0\)\)",
    ):
        extract_files(job, runner=SparkRunner(spark))
    with pytest.raises(
        InputError, match=r"^all 3 rows are skipped .* \(DataFrame, partition 0, row 0\)\)"
    ):
        extract_dataframe(job, spark.read.parquet(job.input_url))
    assert not list(tmp_path.rglob("t/**/*.parquet"))


def test_a_value_that_fails_is_named_by_file_or_partition_and_row_on_spark(
    spark: Any, tmp_path: Path
) -> None:
    write(
        tmp_path / "raw",
        [
            {"text": b"a\n" if row == 13 else b"b", "days": 0.5 if row == 13 else 1.0}
            for row in range(20)
        ],
    )
    job = ExtractJob(
        spec=load_spec(document({"days": "fail"})),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "t"),
    )
    expected = (
        r"row 13: column 'days': expected long, found 0\.5 \(not whole\), and on_error says fail$"
    )
    with pytest.raises(InputError, match=rf"^\S*/000\.parquet, {expected}"):
        extract_files(job, runner=SparkRunner(spark))
    with pytest.raises(InputError, match=rf"^DataFrame, partition 0, {expected}"):
        extract_dataframe(job, spark.read.parquet(job.input_url))


def test_a_column_of_the_wrong_shape_is_missing_or_skipped_on_spark(
    spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "raw", [{"wrong": [1]}, {"wrong": None}, {"wrong": []}])
    for policy, ids in (("null", [0, 1, 2]), ("skip", [1])):
        spec = load_spec(document({"wrong": policy}))
        job = ExtractJob(
            spec=spec, input_url=str(tmp_path / "raw"), table_url=str(tmp_path / policy)
        )
        report = extract_files(job, runner=SparkRunner(spark))
        assert [row["id"] for row in rows_of(report)] == ids
        assert report.counts["wrong: wrong type"] == 2
        assert [example.value for example in report.examples if example.column == "wrong"] == [
            "[1]",
            "[]",
        ]


def test_a_users_operator_that_fails_is_named_with_file_and_row_on_spark(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "touchy_operator.py").write_text(
        "import featstore, pyarrow as pa, pyarrow.compute as "
        "pc\n@featstore.operator(inputs=[pa.int64()], result=pa.int64())\ndef touchy(numbers):\n   "
        " if pc.any(pc.equal(numbers, 17)).as_py():\n        raise RuntimeError('not\\n17')\n    "
        "return numbers\n"
    )
    monkeypatch.syspath_prepend(str(package))
    spark.sparkContext.addPyFile(str(package / "touchy_operator.py"))
    write(tmp_path / "raw", [{"text": b"\xff" if row == 3 else b"a"} for row in range(20)])
    spec = document({"text": "skip"})
    spec["slots"].append({"slot": 3, "name": "picky", "op": "touchy_operator:touchy", "of": "id"})
    job = ExtractJob(
        spec=load_spec(spec), input_url=str(tmp_path / "raw"), table_url=str(tmp_path / "t")
    )
    expected = r"row 17: picky \(touchy_operator:touchy\): RuntimeError: not 17$"
    with pytest.raises(OperatorError, match=rf"^\S*/000\.parquet, {expected}"):
        extract_files(job, runner=SparkRunner(spark))
    with pytest.raises(OperatorError, match=rf"^DataFrame, partition 0, {expected}"):
        extract_dataframe(job, spark.read.parquet(job.input_url))


@pytest.mark.parametrize("kind", [pa.decimal128(38, 18), pa.decimal256(60, 18)])
def test_decimals_become_the_same_numbers_on_every_engine(
    spark: Any, tmp_path: Path, kind: pa.DataType
) -> None:
    texts = ("0.1", "4321.07", "-3", "9007199254740993", "123456789012.345678901234567891", None)
    values = [text and decimal.Decimal(text) for text in texts]
    raw = tmp_path / "raw"
    raw.mkdir()
    columns = {"x": pa.array(values, kind), "n": pa.array(values, kind)}
    pq.write_table(pa.table({"id": range(len(values)), **columns}), raw / "a.parquet")
    document = {
        "spec": 1,
        "inputs": {"id": "long", "x": "double", "n": {"type": "long", "on_error": "null"}},
        "keep": ["id", "x", "n"],
        "slots": [{"slot": 1, "name": "n_hash", "op": "hash", "of": "n"}],
    }
    job = ExtractJob(spec=load_spec(document), input_url=str(raw), table_url=str(tmp_path / "here"))
    here = extract_files(job)
    assert [row["x"] for row in rows_of(here)] == [text and float(text) for text in texts]
    assert [row["n"] for row in rows_of(here)] == [None, None, -3, 9007199254740993, None, None]
    there = extract_files(
        replace(job, table_url=str(tmp_path / "spark")), runner=SparkRunner(spark)
    )
    assert (rows_of(there), there.counts) == (rows_of(here), here.counts)
    query = replace(job, table_url=str(tmp_path / "query"))
    if kind.bit_width > 128:  # Spark has at most 38 digits
        with pytest.raises(ArithmeticException, match="PRECISION_EXCEEDS_MAX_PRECISION"):
            spark.read.parquet(str(raw))
        return
    queried = extract_dataframe(query, spark.read.parquet(str(raw)))
    assert (rows_of(queried), queried.counts) == (rows_of(here), here.counts)
