"""`--rejects FILE`: the rows that were skipped or repaired as malformed, and why."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import InputError, TableNotFoundError
from featstore.explore.description import table_history
from featstore.explore.table import open_table
from featstore.extraction import job as jobs
from featstore.extraction.days import extract_days
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.units import findings
from featstore.spec.parse import load_spec

SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {
        "user": "string",
        "price": {"type": "double", "text": True, "on_error": "skip"},
        "tags": {"type": "list<string>", "on_error": "null"},
        "num": {"type": "long", "text": True},
    },
    "keep": ["user"],
    "slots": [
        {"slot": 1, "name": "f_price", "op": "identity", "of": "price"},
        {"slot": 2, "name": "f_tags", "op": "hash", "of": "tags"},
        {"slot": 3, "name": "f_num", "op": "hash", "of": "num"},
    ],
    "output": {"rows_per_row_group": 2, "rows_per_file": 4},
}
RAW = pa.table(
    {
        "user": ["a", "b", "c", "d", "e", "f"],
        "price": ["1.5", "1,5", "2", "$3", "4", None],
        "tags": pa.array([[b"x"], [b"y"], [b"\xff", b"z", b"\xfe"], [b"\xff"], None, []]),
        "num": ["1", "2", "3", "x", "1.5", "6"],
    }
)


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    (tmp_path / "raw").mkdir()
    pq.write_table(RAW, tmp_path / "raw" / "a.parquet", row_group_size=2)
    return ExtractJob(
        spec=load_spec(SPEC),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "table"),
        rejects=str(tmp_path / "rejects.jsonl"),
    )


def lines_of(job: ExtractJob) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(str(job.rejects)).read_text().splitlines()]


def found_in(lines: list[dict[str, Any]]) -> list[tuple[int, bool, list[str]]]:
    return [
        (line["row"], line["skipped"], [f"{r['column']}: {r['what']}" for r in line["reasons"]])
        for line in lines
    ]


EXPECTED = [
    (1, True, ["price: not a number"]),
    (2, False, ["tags: invalid utf-8"]),
    (3, True, ["price: not a number", "num: not a number"]),
    (4, False, ["num: not whole"]),
]


@pytest.mark.parametrize("clustered", [False, True])
def test_skipped_and_repaired_rows_are_listed_with_reasons_and_values(
    job: ExtractJob, clustered: bool
) -> None:
    if clustered:
        output = SPEC["output"] | {"cluster_by": "user"}
        job = replace(job, spec=load_spec(SPEC | {"output": output}))
    assert extract_files(job).num_rows == 4
    *lines, last = lines_of(job)
    assert found_in(lines) == EXPECTED
    assert last == {"num_rows": 4, "num_listed": 4, "complete": True}
    assert lines[0]["source"].endswith("raw/a.parquet")
    assert lines[0]["values"] == {"user": "b", "price": "1,5", "tags": ["y"], "num": "2"}
    assert lines[0]["reasons"][0]["value"] == "'1,5'"
    assert lines[1]["values"]["tags"] == ["\ufffd", "z", "\ufffd"]


def test_at_most_so_many_rows_are_listed_and_the_file_says_so(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (jobs, findings):
        monkeypatch.setattr(module, "MAX_REJECTS", 3)
    extract_files(job)
    *lines, last = lines_of(job)
    # Two units of four and two rows list at most two each.
    assert found_in(lines) == [EXPECTED[0], EXPECTED[1], EXPECTED[3]]
    assert last == {"num_rows": 4, "num_listed": 3, "complete": False}


def test_a_file_without_a_malformed_row_says_that_there_is_none(job: ExtractJob) -> None:
    pq.write_table(RAW.slice(0, 1), Path(job.input_url) / "a.parquet")
    extract_files(job)
    assert lines_of(job) == [{"num_rows": 0, "num_listed": 0, "complete": True}]


def test_rows_are_listed_where_all_are_skipped_so_that_nothing_is_committed(
    job: ExtractJob,
) -> None:
    pq.write_table(RAW.slice(1, 1), Path(job.input_url) / "a.parquet")
    with pytest.raises(InputError, match="all 1 rows are skipped"):
        extract_files(job)
    assert lines_of(job)[-1]["num_rows"] == 1


def test_if_the_file_cannot_be_written_nothing_is_committed(
    job: ExtractJob, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        extract_files(replace(job, rejects=str(tmp_path / "file" / "rejects")))
    with pytest.raises(TableNotFoundError):
        open_table(job.table_url)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("table/r", "expected a file outside of .*table"),
        ("raw/r.jsonl", "expected a file outside of .*raw"),
        ("", "expected a file, found the directory"),
    ],
)
def test_a_place_where_the_file_would_be_taken_for_rows_is_refused(
    job: ExtractJob, tmp_path: Path, where: str, expected: str
) -> None:
    with pytest.raises(InputError, match=f"rejects: {expected}"):
        extract_files(replace(job, rejects=str(tmp_path / where)))


def test_each_day_has_a_file_of_its_own(job: ExtractJob, tmp_path: Path) -> None:
    for day, rows in (("2026-11-01", RAW.slice(0, 2)), ("2026-11-02", RAW.slice(2))):
        (tmp_path / "days" / day).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "days" / day / "a.parquet")
    job = replace(job, input_url=str(tmp_path / "days" / "{dt}"))
    days = "2026-11-01..2026-11-02"
    with pytest.raises(InputError, match=r"rejects: .* placeholders of the input \(\{dt\}\)"):
        extract_days(job, days)
    extract_days(replace(job, rejects=str(tmp_path / "{dt}.jsonl")), days)
    numbers = [
        len((tmp_path / f"{day}.jsonl").read_text().splitlines())
        for day in ("2026-11-01", "2026-11-02")
    ]
    assert numbers == [2, 4]


def test_a_slot_group_lists_none(job: ExtractJob) -> None:
    with pytest.raises(InputError, match="rejects: expected it without `group`"):
        featstore.extract(job.spec, job.input_url, job.table_url, group="more", rejects=job.rejects)


def test_counts_by_input_and_reason_can_be_read_later(job: ExtractJob) -> None:
    job = replace(job, rejects=None, partition={"dt": "2026-11-01"})
    extract_files(job)
    expected = [
        "2 rows skipped",
        "num: not a number: 1",
        "num: not whole: 1",
        "price: not a number: 2",
        "tags: invalid utf-8: 2",
    ]
    described = open_table(job.table_url).inspect()
    assert list(described.malformed) == [f"dt=2026-11-01: {line}" for line in expected]
    assert str(described).endswith("\n".join(described.malformed))
    shown = str(table_history(job.table_url))
    assert shown.endswith("\n".join(f"version 0, dt=2026-11-01: {line}" for line in expected))
    pq.write_table(RAW.slice(0, 1), Path(job.input_url) / "a.parquet")
    extract_files(replace(job, run_id="again"))
    assert not open_table(job.table_url).inspect().malformed, "those of replaced rows are gone"
    assert "version 0, dt=2026-11-01: 2 rows skipped" in str(table_history(job.table_url))


def test_no_other_file_is_written_over(job: ExtractJob, tmp_path: Path) -> None:
    raw = tmp_path / "raw" / "a.parquet"
    before = raw.read_bytes()
    for pattern in ("raw/*.parquet", "raw/[a-b].*", "r*/a.parquet"):
        globbed = replace(job, input_url=f"{tmp_path}/{pattern}", rejects=str(raw))
        with pytest.raises(InputError, match="rejects: expected a file outside of"):
            extract_files(globbed)
    notes = tmp_path / "notes"
    for text in ("mine", "", '{"num_rows": 1}\n'):
        notes.write_text(text)
        with pytest.raises(InputError, match="rejects: expected no file, or one of rejected rows"):
            extract_files(replace(job, rejects=str(notes)))
        assert notes.read_text() == text
    assert raw.read_bytes() == before
    extract_files(job)
    extract_files(replace(job, table_url=f"{job.table_url}2"))  # Over its own.


def test_counts_are_of_the_partitions_and_slot_groups_in_use(job: ExtractJob) -> None:
    for day in ("01", "02", "03"):
        (directory := Path(job.input_url) / f"dt=2026-11-{day}").mkdir()
        pq.write_table(RAW, directory / "a.parquet")
    (Path(job.input_url) / "a.parquet").unlink()
    extract_files(replace(job, rejects=None, partition_from_path=("dt",)))
    every = "dt=2026-11-01 to dt=2026-11-03 (3)"
    assert open_table(job.table_url).inspect().malformed[0] == f"{every}: 6 rows skipped"
    third = replace(
        job,
        rejects=None,
        input_url=str(Path(job.input_url) / "dt=2026-11-03"),
        partition={"dt": "2026-11-03"},
        run_id="again",
    )
    extract_files(third)
    more = {"slot": 4, "name": "more", "op": "identity", "of": "num"}
    spec = load_spec(SPEC | {"slots": [*SPEC["slots"], more]})
    featstore.extract(spec, third.input_url, job.table_url, partition=third.partition, group="more")
    found = [line for line in open_table(job.table_url).inspect().malformed if "skipped" in line]
    assert found == [
        "dt=2026-11-03: 2 rows skipped",
        f"{every}, 1 of them replaced since: 6 rows skipped",
        "slot group more, dt=2026-11-03: 2 rows skipped",
    ]
    shown = str(table_history(job.table_url))
    assert "version 2, slot group more: 2 rows skipped" in shown
    pq.write_table(RAW.slice(0, 4), Path(third.input_url) / "a.parquet")
    extract_files(replace(third, run_id="third"))
    assert "slot group" not in "".join(open_table(job.table_url).inspect().malformed), "stale"
