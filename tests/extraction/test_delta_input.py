"""Raw rows in a Delta table are extracted as those of files are, of the version that is named."""

import json
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore.base.errors import InputError, TableNotFoundError
from featstore.extraction.days import extract_days
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner
from featstore.extraction.units.raw import find_raw_files, open_range, plan_units
from featstore.files.listings import FileEntry, find_file
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table import open as open_module
from featstore.table.delta import files_at, open_delta
from featstore.table.log_files import read_actions
from featstore.table.open import OpenedTables, open_input
from featstore.table.snapshot import FileList, Snapshot
from tests.extraction.conftest import raw_rows
from tests.masked_tables import add_file, commit, delete_by_vector
from tests.parquet_files import put_parquet
from tests.table.test_column_mapping import PROTOCOLS, column, mapped_table, struct

DAYS = ("2026-11-01", "2026-11-02")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Raw rows of two days, in a version each."""
    url = str(tmp_path / "lake")
    for day, rows in zip(
        DAYS, (raw_rows(300, dt=DAYS[0]), raw_rows(200, 300, dt=DAYS[1])), strict=True
    ):
        assert day in rows["dt"].to_pylist()
        write_deltalake(url, rows, mode="append", partition_by=["dt"])
    return url


PLAIN_TABLE: list[dict[str, Any]] = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "x",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(struct(column("x", "long", 1, "x"))),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": 0,
        }
    },
]


def add_action(path: str, num_rows: int, *, is_new: bool) -> dict[str, Any]:
    of_file = {"path": path, "size": 100, "partitionValues": {}, "modificationTime": 1}
    return {"add": of_file | {"dataChange": is_new, "stats": json.dumps({"numRecords": num_rows})}}


def remove_action(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": False}}


def job_of(spec: Spec, root: Path, url: str, **options: Any) -> ExtractJob:
    options = {"partition_from_path": ("dt",), **options}
    return ExtractJob(spec=spec, input_url=url, table_url=str(root / "table"), **options)


def extracted(job: ExtractJob) -> pa.Table:
    rows = featstore.open_table(job.table_url).to_arrow()
    return rows.sort_by([(name, "ascending") for name in ("dt", "price_log", "user")])


def from_files(spec: Spec, root: Path, *days: pa.Table) -> pa.Table:
    """What extracting the rows of some days from plain files gives."""
    for day, rows in zip(DAYS, days, strict=False):
        put_parquet(root / "raw" / f"dt={day}" / "a.parquet", rows)
    job = replace(job_of(spec, root, str(root / "raw")), table_url=str(root / "expected"))
    extract_files(job)
    return extracted(job)


def test_a_version_is_extracted_as_files_are(spec: Spec, table: str, tmp_path: Path) -> None:
    expected = from_files(spec, tmp_path, raw_rows(300), raw_rows(200, 300))
    first = job_of(spec, tmp_path, f"delta+{table}?version=0")
    extract_files(first)
    assert extracted(first).equals(expected.filter(pc.equal(expected["dt"], DAYS[0])))
    newest = job_of(spec, tmp_path, f"delta+{table}")
    extract_files(newest)
    assert extracted(newest).equals(expected)
    assert not extract_files(newest).committed
    assert not extract_files(replace(newest, input_url=f"delta+{table}?version=1")).committed


def test_days_are_partitions_of_the_table(spec: Spec, table: str, tmp_path: Path) -> None:
    expected = from_files(spec, tmp_path, raw_rows(300), raw_rows(200, 300))
    job = job_of(spec, tmp_path, f"delta+{table}?dt={{dt}}", run_id="a", partition_from_path=())
    days = "2026-11-01..2026-11-02"
    extract_days(job, days)
    assert extracted(job).equals(expected)
    write_deltalake(table, raw_rows(10, 500, dt=DAYS[1]), mode="append")
    again = extract_days(replace(job, run_id="b"), days, dry_run=True)
    assert [str(day.reason) for day in again.days] == ["up to date", "stale input"]


def test_a_table_is_opened_once_for_all_days(
    spec: Spec, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()

    def open_noted(url: str, version: int | None = None) -> Snapshot:
        opened.append(url)
        return open_delta(url, version)

    monkeypatch.setattr(open_module, "open_delta", open_noted)
    job = job_of(spec, tmp_path, f"delta+{table}?dt={{dt}}", partition_from_path=())
    done = extract_days(job, "2026-11-01..2026-11-02")
    assert [day.report.num_rows for day in done.days if day.report] == [300, 200]
    assert opened == [table]


def test_a_range_of_versions_is_extracted_also_after_its_files_were_rewritten(
    spec: Spec, table: str, tmp_path: Path
) -> None:
    expected = from_files(spec, tmp_path, raw_rows(300), raw_rows(200, 300))
    write_deltalake(table, raw_rows(10, 500, dt=DAYS[1]), mode="append")
    rewritten = DeltaTable(table).optimize.compact()
    assert rewritten["numFilesRemoved"] == 2
    second = expected.filter(pc.equal(expected["dt"], DAYS[1]))
    for query, rows in (("after=0&version=1", second), ("after=-1&version=1", expected)):
        job = replace(
            job_of(spec, tmp_path, f"delta+{table}?{query}"), table_url=f"{tmp_path}/{query}"
        )
        extract_files(job)
        assert extracted(job).equals(rows)
    job = job_of(spec, tmp_path, f"delta+{table}?after=0")
    assert extract_files(job).num_rows == 210, "as they were appended, in versions 1 and 2"


@settings(max_examples=20)
@given(st.lists(st.sampled_from(("append", "append", "compact")), max_size=8), st.data())
def test_a_range_is_what_its_versions_appended_whenever_files_were_rewritten(
    acts: list[str], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as root:
        appended, live, log = dict[str, int](), list[str](), Path(root, "_delta_log")
        log.mkdir()
        for version, act in enumerate(["append", *acts]):
            old, live = (live, []) if act == "compact" else ([], live)
            new = [f"{version}-{index}.parquet" for index in range(1 if old else 3)]
            appended |= {} if act == "compact" else dict.fromkeys(new, version)
            live += new
            actions = [remove_action(path) for path in old]
            actions += [add_action(path, 5, is_new=act != "compact") for path in new]
            if not version:
                actions += PLAIN_TABLE
            (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
        last = data.draw(st.integers(0, version))
        after = data.draw(st.integers(-1, last))
        found = open_input(f"delta+{root}?after={after}&version={last}")
        assert found is not None
        expected = {path: of for path, of in appended.items() if after < of <= last}
        assert found.appended == expected
        assert list(found.snapshot.data_files.paths) == sorted(expected)


def test_a_file_that_a_version_appended_and_no_version_has_is_told(tmp_path: Path) -> None:
    added = [add_action(f"{name}.parquet", 5, is_new=True) for name in "abc"]
    commit(tmp_path, 0, PLAIN_TABLE)
    commit(tmp_path, 1, added[:1])
    DeltaTable(tmp_path).create_checkpoint()
    commit(tmp_path, 1, added[:2])  # as the checkpoint does not have it
    commit(tmp_path, 2, added[2:])
    with pytest.raises(
        InputError, match=r"expected b\.parquet, which version 1 appended, in .* 2 "
    ):
        open_input(f"delta+{tmp_path}?after=0")


def test_of_a_long_range_that_was_rewritten_once_one_version_is_opened(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(500, 600, 10):
        write_deltalake(table, raw_rows(10, first, dt=DAYS[0]), mode="append")
    DeltaTable(table).optimize.compact()
    opened = list[int]()

    def open_version(url: str, version: int) -> FileList:
        opened.append(version)
        return files_at(url, version)

    monkeypatch.setattr(open_module, "files_at", open_version)
    found = open_input(f"delta+{table}?after=-1")
    assert found is not None
    assert (found.snapshot.num_rows, opened) == (600, [11])


def test_a_range_in_which_rows_were_taken_away_or_are_unknown_is_refused(
    spec: Spec, table: str, tmp_path: Path
) -> None:
    DeltaTable(table).delete("price < 1")
    for query, error, message in (
        ("after=0", InputError, r"only appends after version 0, found version 2 \(DELETE\)"),
        ("after=2&version=1", InputError, "expected a version after which 1 came, found 2"),
        ("after=x", InputError, "the number of a version, found 'x'"),
        ("after=2", InputError, "no raw files at"),
    ):
        with pytest.raises(error, match=message):
            extract_files(job_of(spec, tmp_path, f"delta+{table}?{query}"))
    DeltaTable(table).create_checkpoint()
    (Path(table) / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(TableNotFoundError, match=r"found none of version 1: .* begin after 1, or"):
        extract_files(job_of(spec, tmp_path, f"delta+{table}?after=0&version=2"))


def test_a_range_of_a_partition_is_not_held_up_by_changes_of_others(
    spec: Spec, table: str, tmp_path: Path
) -> None:
    DeltaTable(table).delete(f"dt = '{DAYS[0]}' and price < 1")
    write_deltalake(table, raw_rows(10, 500, dt=DAYS[1]), mode="append")
    job = job_of(spec, tmp_path, f"delta+{table}?after=0&dt={DAYS[1]}")
    assert extract_files(job).num_rows == 210
    for query in (f"after=0&dt={DAYS[0]}", "after=0"):
        with pytest.raises(InputError, match=r"found version 2 \(DELETE\), which also takes rows"):
            extract_files(replace(job, input_url=f"delta+{table}?{query}"))


def test_the_version_before_a_removal_is_opened_once_for_all_days(
    spec: Spec, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(table, raw_rows(10, 600, dt="2026-10-30"), mode="append")
    DeltaTable(table).delete("dt = '2026-10-30'")
    opened = list[int | None]()

    def open_noted(url: str, version: int | None = None) -> Snapshot:
        opened.append(version)
        return open_delta(url, version)

    monkeypatch.setattr(open_module, "open_delta", open_noted)
    url = f"delta+{table}?after=-1&dt={{dt}}"
    done = extract_days(job_of(spec, tmp_path, url, partition_from_path=()), "..".join(DAYS))
    assert [day.report.num_rows for day in done.days if day.report] == [300, 200]
    assert opened.count(2) == 1


def test_a_range_of_a_partition_is_refused_where_it_is_not_known_to_be_another(
    tmp_path: Path,
) -> None:
    def raw(day: object, count: int = 3) -> pa.Table:
        return pa.table({"x": range(count), "dt": [day] * count})

    def refuses(url: str, query: str, found: str) -> None:
        with pytest.raises(InputError, match=rf"found version {found}, which also takes rows"):
            open_input(f"delta+{url}?{query}")

    retyped, cleaned = str(tmp_path / "retyped"), str(tmp_path / "cleaned")
    write_deltalake(retyped, raw("a"), partition_by=["dt"])
    overwrite: dict[str, Any] = {"mode": "overwrite", "schema_mode": "overwrite"}
    write_deltalake(retyped, raw(1), partition_by=["dt"], **overwrite)
    refuses(retyped, "after=0&dt=1", r"1 \(WRITE\)")
    for day in "abbb":
        write_deltalake(cleaned, raw(day), partition_by=["dt"], mode="append")
    DeltaTable(cleaned).delete("dt = 'a'")
    write_deltalake(cleaned, raw("b"), mode="append")
    opened = open_input(f"delta+{cleaned}?after=3&dt=b")
    assert opened is not None
    assert opened.snapshot.num_rows == 3
    DeltaTable(cleaned).create_checkpoint()
    for version in range(4):
        (Path(cleaned) / "_delta_log" / f"{version:020}.json").unlink()
    refuses(cleaned, "after=3&version=5&dt=b", r"4 \(DELETE\)")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("after=-1", "files that version 2 appended were vacuumed; begin after it, take a whole"),
        ("version=0", "files of version 0 were vacuumed; take a newer version, or restore the"),
    ],
)
def test_vacuumed_files_of_a_version_are_told_and_end_a_run_for_good(
    spec: Spec, table: str, tmp_path: Path, query: str, message: str
) -> None:
    write_deltalake(table, raw_rows(10, 500, dt=DAYS[0]), mode="append")
    DeltaTable(table).optimize.compact()
    [gone, _] = DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(InputError, match=message) as error:
        extract_files(job_of(spec, tmp_path, f"delta+{table}?{query}"))
    assert not error.value.may_pass
    assert not (Path(table) / gone).exists()
    begun_later = job_of(spec, tmp_path, f"delta+{table}?after=2")
    with pytest.raises(InputError, match="no raw files at"):
        extract_files(begun_later)


@pytest.mark.parametrize("is_open", [True, False])
def test_of_a_range_the_newest_version_is_told_that_lost_a_file_among_those_rewritten_since(
    table: str, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    url = f"delta+{table}?after=-1"
    for first in range(500, 540, 10):
        write_deltalake(table, raw_rows(10, first, dt=DAYS[0]), mode="append")
    input_ = open_input(url)
    assert input_ is not None
    paths = {input_.appended[file.path]: Path(file.url) for file in input_.snapshot.data_files}
    assert len(paths) == 6
    DeltaTable(table).optimize.compact()  # all but that of version 1, the only one of its day
    for first in (540, 550):
        write_deltalake(table, raw_rows(10, first, dt=DAYS[0]), mode="append")
    [unit] = plan_units(find_raw_files(url, {}, ()), 1_000)
    of_first = next(raw for raw in unit.ranges if raw.url == str(paths[0]))
    for version in (0, 2, 3):
        paths[version].unlink()
    looked_at = list[str]()

    def look(url: str) -> FileEntry | None:
        looked_at.append(url)
        return find_file(url)

    monkeypatch.setattr(open_module, "find_file", look)
    with (
        pytest.raises(InputError, match="files that version 3 appended were vacuumed; begin"),
        open_range(of_first) if is_open else nullcontext(),
    ):
        find_raw_files(url, {}, ())
    looked_for = [str(paths[5]), str(paths[4]), str(paths[3])]
    assert looked_at in (looked_for, looked_for[:2])  # without that which was met
    assert len(find_raw_files(f"delta+{table}?after=3", {}, ())) == 4


def test_a_range_is_read_from_the_log_once_for_all_days(
    spec: Spec, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    def read_noted(url: str, version: int) -> list[dict[str, Any]]:
        read.append(version)
        return read_actions(url, version)

    monkeypatch.setattr(open_module, "read_actions", read_noted)
    url = f"delta+{table}?after=-1&dt={{dt}}"
    done = extract_days(job_of(spec, tmp_path, url, partition_from_path=()), "..".join(DAYS))
    assert [day.report.num_rows for day in done.days if day.report] == [300, 200]
    assert sorted(read) == [0, 1]


def test_of_many_tables_the_last_ones_stay_open() -> None:
    opened, made = OpenedTables(), list[int]()

    def get(key: int) -> None:
        opened.get(key, lambda: made.append(key))

    for key in range(100):
        get(0)
        get(key)
    assert made == [*range(100)]
    get(99)
    assert len(made) == 100
    get(1)
    assert made[100:] == [1]


@pytest.mark.parametrize(("query", "may_pass"), [("", True), ("?version=2", False)])
@pytest.mark.parametrize("what", ["a data file", r"its deleted rows in \S+\.bin"])
def test_what_goes_while_rows_are_read_is_told_as_what_goes_before(
    table: str, query: str, what: str, *, may_pass: bool
) -> None:
    delete_by_vector(table, [0, 7])
    [unit, *_] = plan_units(find_raw_files(f"delta+{table}{query}", {}, ("dt",)), 1_000)
    of_table = unit.ranges[0].of_table
    assert of_table is not None
    data, rows = of_table.urls
    Path(data if what == "a data file" else rows).unlink()
    with (
        pytest.raises(InputError, match=f"rows 0 to 299: expected {what}, found none: ") as error,
        open_range(unit.ranges[0]),
    ):
        pass
    assert error.value.may_pass == may_pass


def test_a_partition_key_that_is_named_as_versions_are_is_not_taken_for_one(
    spec: Spec, tmp_path: Path
) -> None:
    url = str(tmp_path / "lake")
    for number in (0, 1):
        rows = raw_rows(10, version=7).append_column("after", pa.array([number] * 10))
        write_deltalake(url, rows, mode="append", partition_by=["after"])
    job = job_of(spec, tmp_path, f"delta+{url}?after=0", partition_from_path=("after",))
    with pytest.raises(InputError, match=r"'after' to mean one thing, found a .* of this name"):
        extract_files(job)
    # A column of this name is none of the partition keys.
    assert extract_files(replace(job, input_url=f"delta+{url}?version=0")).num_rows == 10


def test_deleted_rows_are_not_extracted_and_their_deletion_is_another_input(
    spec: Spec, table: str, tmp_path: Path
) -> None:
    job = job_of(spec, tmp_path, f"delta+{table}")
    extract_files(job)
    gone = [0, 7, *range(100, 150)]
    delete_by_vector(table, gone)
    assert extract_files(replace(job, run_id="b")).committed
    left = raw_rows(300).take([row for row in range(300) if row not in gone])
    assert extracted(job).equals(from_files(spec, tmp_path, left, raw_rows(200, 300)))


def test_spark_extracts_the_same(spark: Any, spec: Spec, table: str, tmp_path: Path) -> None:
    delete_by_vector(table, [0, 7])
    left = raw_rows(300).take([row for row in range(300) if row not in (0, 7)])
    job = job_of(spec, tmp_path, f"delta+{table}")
    extract_files(job, runner=SparkRunner(spark))
    assert extracted(job).equals(from_files(spec, tmp_path, left, raw_rows(200, 300)))


@pytest.mark.parametrize("is_read", [True, False])
def test_a_range_over_a_renamed_key_is_refused_if_its_files_were_rewritten_before(
    spec: Spec, tmp_path: Path, is_read: bool
) -> None:
    table = tmp_path / "lake"

    def keyed_by(name: str) -> dict[str, Any]:
        columns = column("user", "string", 1, "c1"), column(name, "string", 2, "c2")
        of_table = {"id": "x", "format": {"provider": "parquet", "options": {}}, "createdTime": 0}
        mapping = {"delta.columnMapping.mode": "name"}
        schema = {"schemaString": json.dumps(struct(*columns)), "configuration": mapping}
        return {"metaData": of_table | schema | {"partitionColumns": [name]}}

    of_day = {"partitionValues": {"c2": DAYS[0]}}
    first = add_file(table, "0.parquet", pa.table({"c1": ["u"]})) | of_day
    again = add_file(table, "1.parquet", pa.table({"c1": ["u"]})) | of_day | {"dataChange": False}
    gone = {"path": "0.parquet", "deletionTimestamp": 1, "dataChange": False} | of_day
    commit(table, 0, [{"protocol": PROTOCOLS[0]}, keyed_by("d"), {"add": first}])
    renamed, rewritten = [keyed_by("dt")], [{"remove": gone}, {"add": again}]
    for version, actions in enumerate([renamed, rewritten] if is_read else [rewritten, renamed], 1):
        commit(table, version, actions)
    if is_read:
        [file] = find_raw_files(f"delta+{table}?after=-1", {}, ("dt",))
        assert (Path(file.listed.url).name, file.partition) == ("0.parquet", {"dt": DAYS[0]})
        return
    with pytest.raises(InputError, match="keys dt in all files since version -1, found others in"):
        extract_files(job_of(spec, tmp_path, f"delta+{table}?after=-1"))


def test_mapped_columns_have_the_names_of_the_table(spec: Spec, tmp_path: Path) -> None:
    rows = raw_rows(100)
    texts = {"type": "array", "elementType": "string", "containsNull": True}
    types = {"user": "string", "tags": texts, "price": "double", "clicked": "long"}
    columns = [column(n, t, i, f"col-{i}") for i, (n, t) in enumerate(types.items(), 1)]
    stored = rows.select(list(types)).rename_columns([f"col-{i}" for i in range(1, 5)])
    url = mapped_table(tmp_path / "lake", "name", columns, stored)
    job = job_of(spec, tmp_path, f"delta+{url}", partition_from_path=(), partition={"dt": DAYS[0]})
    extract_files(job)
    assert extracted(job).equals(from_files(spec, tmp_path, rows))


def test_what_is_no_raw_table_is_refused(spec: Spec, table: str, tmp_path: Path) -> None:
    for url, error, message in (
        (f"delta+{table}?version=x", InputError, "the number of a version, found 'x'"),
        (f"delta+{table}?dt=a&dt=", InputError, r"one value of 'dt' after '\?', found 2: name one"),
        (f"delta+{table}?version=9", TableNotFoundError, "no version 9"),
        (f"delta+{table}?day=1", InputError, r"or a partition key \(dt\) after '\?', found 'day'"),
        (f"delta+{tmp_path}/none", TableNotFoundError, "no table at"),
        (table, InputError, rf"name the table in place of its files \(delta\+{table}\)"),
    ):
        with pytest.raises(error, match=message):
            extract_files(job_of(spec, tmp_path, url))
    extract_files(job_of(spec, tmp_path, f"delta+{table}"))
    own = job_of(spec, tmp_path, f"delta+{tmp_path}/table")
    with pytest.raises(InputError, match="found one that featstore wrote"):
        extract_files(replace(own, table_url=str(tmp_path / "other")))


def renamed_table(root: Path, names: tuple[str, str]) -> str:
    """Raw rows with two columns of clicks, of which the second is the opposite of the first; the
    table gives them these names.
    """
    rows = raw_rows(100)
    texts = {"type": "array", "elementType": "string", "containsNull": True}
    types = {"user": "string", "tags": texts, "price": "double"}
    types |= dict.fromkeys(names, "long")
    columns = [column(n, t, i, f"col-{i}") for i, (n, t) in enumerate(types.items(), 1)]
    other = pc.subtract(pa.scalar(1), rows["clicked"])
    stored = rows.select(["user", "tags", "price", "clicked"]).append_column("other", other)
    return mapped_table(
        root / "lake", "name", columns, stored.rename_columns([f"col-{i}" for i in range(1, 6)])
    )


def test_another_column_of_the_same_name_is_another_input(spec: Spec, tmp_path: Path) -> None:
    url = renamed_table(tmp_path, ("clicked", "bought"))
    options = {"partition_from_path": (), "partition": {"dt": DAYS[0]}}
    job = job_of(spec, tmp_path, f"delta+{url}", **options)
    extract_files(job)
    clicks = extracted(job)["click"].to_pylist()
    renamed_table(tmp_path, ("clicked", "paid"))
    assert not extract_files(replace(job, run_id="a")).committed  # The spec does not read it.
    renamed_table(tmp_path, ("bought", "clicked"))
    assert extract_files(replace(job, run_id="b")).committed
    assert extracted(job)["click"].to_pylist() == [1 - click for click in clicks]


def test_labels_of_another_column_are_matched_by_files(
    spec: Spec, document: dict[str, Any], tmp_path: Path
) -> None:
    url = renamed_table(tmp_path, ("clicked", "bought"))
    options = {"partition_from_path": (), "partition": {"dt": DAYS[0]}}
    job = job_of(spec, tmp_path, f"delta+{url}", **options)
    extract_files(job)
    clicks = extracted(job)["click"].to_pylist()
    document["inputs"]["bought"] = "long"
    document["labels"] = {"click": "bought"}
    again = replace(job, spec=load_spec(document), run_id="b")
    assert extract_group(GroupJob(job=again, name="labels", labels=True)).committed
    assert extracted(job)["click"].to_pylist() == [1 - click for click in clicks]


def test_values_are_compared_in_the_type_of_the_key(spec: Spec, tmp_path: Path) -> None:
    url = str(tmp_path / "lake")
    for hour, is_new in ((0, True), (5, True), (5, False)):
        rows = raw_rows(10).append_column("hour", pa.array([hour] * 10, pa.int32()))
        rows = rows.append_column("is_new", pa.array([is_new] * 10))
        write_deltalake(url, rows, mode="append", partition_by=["hour", "is_new"])
    options = {"partition_from_path": (), "partition": {"hour": "05"}}
    job = job_of(spec, tmp_path, f"delta+{url}?hour=05&is_new=1", **options)
    assert extract_files(job).num_rows == 10
    with pytest.raises(InputError, match=r"of the partition key 'is_new' \(bool\), found 'maybe'"):
        extract_files(replace(job, input_url=f"delta+{url}?is_new=maybe"))


@pytest.mark.parametrize(
    ("query", "hours"),
    [
        ("hour=5..11", [5, 10]),
        ("hour=05..5", [5]),
        ("hour=6..9", []),
        ("hour=0..12&new=b..c", [10]),
    ],
)
def test_a_range_of_a_key_has_both_ends_and_is_in_its_type(
    tmp_path: Path, query: str, hours: list[int]
) -> None:
    url = str(tmp_path / "lake")
    write_deltalake(
        url,
        pa.table({"hour": [0, 5, 10, None], "new": ["a", "a", "b", "b"], "n": [1, 2, 3, 4]}),
        partition_by=["hour", "new"],
    )
    found = open_input(f"delta+{url}?{query}")
    assert found is not None
    values = [file.partition["hour"] for file in found.snapshot.data_files]
    assert sorted(int(value or -1) for value in values) == hours


def test_a_range_that_is_none_is_refused(spec: Spec, table: str, tmp_path: Path) -> None:
    for query, message in (
        (
            f"dt={DAYS[1]}..{DAYS[0]}",
            f"the first value of .*'dt' .string. before the last, found '{DAYS[1]}",
        ),
        (
            f"dt={DAYS[0]}&dt={DAYS[1]}",
            r"one value of 'dt' after .* or of a .* range, FIRST\.\.LAST",
        ),
    ):
        with pytest.raises(InputError, match=message):
            extract_files(job_of(spec, tmp_path, f"delta+{table}?{query}"))


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_a_url_at_which_no_delta_table_is_looked_for_is_refused(
    spec: Spec, tmp_path: Path, scheme: str
) -> None:
    job = job_of(spec, tmp_path, f"delta+{scheme}://127.0.0.1:9/lake")
    with pytest.raises(
        InputError, match=rf"Delta table by a path, or at .* found {scheme}://, from"
    ):
        extract_files(job)
