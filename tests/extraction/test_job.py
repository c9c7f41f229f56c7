import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import featstore
from featstore import api
from featstore.base.errors import InputError, OperatorError
from featstore.explore.table import open_table
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask
from featstore.spec.model import OutputOptions, Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import history, open_delta
from tests.extraction.conftest import raw_rows
from tests.parquet_files import put_parquet


@featstore.operator(inputs=[pa.float64()], result=pa.float64())
def strict(prices: pa.Array) -> pa.Array:
    if pc.any(pc.less(prices, 0)).as_py():
        raise LookupError("no price\nbelow 0")
    return prices


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_operators", sys.modules[__name__])


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path) -> ExtractJob:
    return ExtractJob(
        spec=spec,
        input_url=str(raw),
        table_url=str(tmp_path / "table"),
        partition={"month": "1"},
        run_id="r1",
    )


def table_rows(url: str) -> list[dict[str, Any]]:
    files = open_delta(url).data_files
    return [row for file in files for row in pq.read_table(file.url, partitioning=None).to_pylist()]


def test_rows_arrive_in_order_and_are_those_of_the_extractor(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 333)
    write_raw("b.parquet", 200, 333)
    report = extract_files(job)
    assert (report.version, report.committed, report.num_rows, report.num_files) == (
        0,
        True,
        533,
        3,
    )
    raw = pa.concat_tables(
        [pq.read_table(f"{job.input_url}/{name}.parquet") for name in "ab"]
    ).combine_chunks()
    expected = Extractor(job.spec)(raw.to_batches()[0])
    assert str(table_rows(job.table_url)) == str(expected.to_pylist())


def test_the_commit_and_the_report_say_what_was_done(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 100)
    report = extract_files(job)
    snapshot = open_delta(job.table_url)
    assert (snapshot.spec_hash, snapshot.partitions) == (job.spec.hash, ({"month": "1"},))
    metadata = history(job.table_url)[0].metadata
    assert metadata is not None
    assert (metadata.run_id, metadata.num_rows, metadata.data_digest) == (
        "r1",
        100,
        snapshot.digest,
    )
    assert metadata.counts == report.counts
    assert str(report).startswith(
        f"committed version 0 of {job.table_url}: 100 rows in 1 files, {snapshot.size_bytes:,} "
        f"bytes"
    )


def test_the_table_is_read_by_other_engines(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 300)
    extract_files(job)
    rows = polars.read_delta(job.table_url)
    assert rows.columns == ["user_id", "tag_ids", "price_log", "click", "user", "month"]
    assert rows["click"].sum() == 150
    assert rows["month"].unique().to_list() == ["1"]


def test_a_table_may_lie_where_a_name_has_brackets(
    job: ExtractJob, write_raw: Any, tmp_path: Path
) -> None:
    write_raw("a.parquet", 100)
    report = extract_files(replace(job, table_url=str(tmp_path / "tables[1]" / "clicks")))
    assert (report.committed, report.num_rows) == (True, 100)


def test_several_partitions_from_the_path_arrive_in_one_commit(
    job: ExtractJob, write_raw: Any
) -> None:
    for month in range(1, 4):
        write_raw(f"month={month}/a.parquet", 100 * month, month=str(month))
    job = replace(job, partition={}, partition_from_path=("month",))
    report = extract_files(job)
    assert (report.version, report.num_rows) == (0, 600)
    found = [
        (file.partition["month"], file.num_rows) for file in open_delta(job.table_url).data_files
    ]
    assert found == [("1", 100), ("2", 200), ("3", 240), ("3", 60)]


def test_the_order_of_keys_is_the_tables_however_a_run_gives_them(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 100)
    extract_files(replace(job, partition={"month": "1", "day": "2"}))
    report = extract_files(replace(job, partition={"day": "2", "month": "1"}, run_id="r2"))
    assert not report.committed
    extract_files(replace(job, partition={"day": "3", "month": "1"}, run_id="r3"))
    assert [file.path[:14] for file in open_delta(job.table_url).data_files] == [
        "month=1/day=2/",
        "month=1/day=3/",
    ]
    metadata = history(job.table_url)[0].metadata
    assert metadata is not None
    assert [list(partition) for partition in metadata.partitions] == [["month", "day"]]


def test_an_equal_run_commits_nothing_and_says_so(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 100)
    first = extract_files(job)
    again = extract_files(replace(job, run_id="r2"))
    assert (again.committed, again.version, again.run_id, again.num_rows) == (False, 0, "r1", 100)
    assert replace(again, committed=True, seconds=0) == replace(first, seconds=0)
    assert str(again).startswith("nothing to do: an equal run was committed before as version 0")
    assert str(again).endswith("to cut files anew, extract into a new table")
    assert "cut files anew" not in str(first)
    assert len(history(job.table_url)) == 1


def test_a_run_that_differs_only_in_how_files_are_cut_is_equal(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 100)
    assert extract_files(job).num_files == 1
    cut = replace(
        job.spec, output=replace(job.spec.output, rows_per_file=10, rows_per_row_group=10)
    )
    assert not extract_files(replace(job, spec=cut, run_id="r2")).committed
    assert extract_files(replace(job, spec=cut, table_url=f"{job.table_url}2")).num_files == 10


def test_an_equal_run_is_done_again_once_its_partition_was_replaced(
    job: ExtractJob, write_raw: Any
) -> None:
    path = write_raw("a.parquet", 100)
    extract_files(job)
    other = write_raw("../other/b.parquet", 50)
    extract_files(replace(job, input_url=str(other.parent), run_id="r2"))
    report = extract_files(replace(job, input_url=str(path.parent), run_id="r3"))
    assert (report.committed, report.version) == (True, 2)
    assert open_delta(job.table_url).num_rows == 100


@pytest.mark.parametrize("change", ["input", "spec", "partition"])
def test_a_run_that_differs_commits(
    job: ExtractJob, write_raw: Any, document: dict[str, Any], change: str
) -> None:
    write_raw("a.parquet", 100)
    extract_files(job)
    job = replace(job, run_id="r2")
    if change == "input":
        write_raw("a.parquet", 100)
    if change == "spec":
        document["slots"][2]["default"] = 1.0
        job = replace(job, spec=load_spec(document))
    if change == "partition":
        job = replace(job, partition={"month": "2"})
    report = extract_files(job)
    assert (report.committed, report.version) == (True, 1)


def test_a_repeated_run_id_is_the_same_run(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 100)
    extract_files(job)
    assert not extract_files(job).committed
    write_raw("a.parquet", 90)
    with pytest.raises(
        InputError,
        match=r"run id 'r1' is already used by version 0 of .*table, with another spec, input or partition; choose a "
        r"new id",
    ):
        extract_files(job)


def test_a_repeated_run_id_for_another_partition_is_refused(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 100)
    extract_files(job)
    with pytest.raises(
        InputError,
        match=r"run id 'r1' is already used by version 0 of .*, with another spec, input or partition",
    ):
        extract_files(replace(job, partition={"month": "2"}), runner=no_runner)


def test_a_new_slot_joins_the_table_and_old_files_lack_it(
    job: ExtractJob, write_raw: Any, document: dict[str, Any]
) -> None:
    write_raw("a.parquet", 100)
    extract_files(job)
    document["slots"] = [
        *document["slots"],
        {"slot": 104, "name": "user_x_tags", "op": "cross", "of": ["user", "tags"]},
    ]
    extract_files(replace(job, spec=load_spec(document), partition={"month": "2"}, run_id="r2"))
    snapshot = open_delta(job.table_url)
    assert snapshot.schema.names == ("user_id", "tag_ids", "price_log", "user_x_tags")
    stored = [set(pq.read_schema(file.url).names) for file in snapshot.data_files]
    assert ["user_x_tags" in names for names in stored] == [False, True]


def test_a_slot_number_of_another_shape_is_refused_before_work(
    job: ExtractJob, write_raw: Any, document: dict[str, Any]
) -> None:
    write_raw("a.parquet", 100)
    extract_files(job)
    document["slots"][0] = {"slot": 101, "name": "user_price", "op": "log1p", "of": "price"}
    with pytest.raises(
        InputError, match=r"slot number 101 \('user_price': float, scalar\) is already used"
    ):
        extract_files(replace(job, spec=load_spec(document), run_id="r2"), runner=no_runner)


def no_runner(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
    raise AssertionError("work has begun")


def test_missing_columns_are_named_before_work(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 10)
    path = write_raw("b.parquet", 10)
    pq.write_table(pq.read_table(path).drop_columns(["price"]), path)
    with pytest.raises(InputError, match=r"b\.parquet: missing input column: expected 'price'"):
        extract_files(job, runner=no_runner)


def test_an_empty_input_leaves_the_table_as_it_is(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 0)
    with pytest.raises(InputError, match=r"raw holds no rows; the table is left as it is"):
        extract_files(job, runner=no_runner)


def test_the_table_may_not_lie_within_its_input(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 10)
    for table_url in (job.input_url, f"{job.input_url}/features"):
        with pytest.raises(
            InputError, match=r"lies within the input .*raw; use separate directories"
        ):
            extract_files(replace(job, table_url=table_url), runner=no_runner)


def test_a_directory_of_foreign_parquet_does_not_become_a_table(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 10)
    write_raw("../table/theirs.parquet", 10)
    with pytest.raises(
        InputError,
        match=r"table is not a table but holds Parquet files \(theirs\.parquet, \.\.\.\)",
    ):
        extract_files(job, runner=no_runner)


def test_partitions_that_cannot_be_replaced_together_are_refused_before_work(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("../old/a.parquet", 10)
    extract_files(
        replace(job, input_url=f"{job.input_url}/../old", partition={"month": "1", "day": "b"})
    )
    write_raw("month=1/day=a/a.parquet", 10)
    write_raw("month=2/day=b/a.parquet", 10)
    several = replace(job, partition={}, partition_from_path=("month", "day"), run_id="r2")
    with pytest.raises(
        InputError,
        match=r"one run cannot replace month=1/day=a, month=2/day=b without month=1/day=b",
    ):
        extract_files(several, runner=no_runner)


def test_names_that_differ_in_case_alone_are_refused_before_work(
    job: ExtractJob, write_raw: Any, document: dict[str, Any]
) -> None:
    write_raw("a.parquet", 10)
    with pytest.raises(
        InputError, match=r"would have columns 'user' and 'USER', one name to Delta; rename 'USER'"
    ):
        extract_files(replace(job, partition={"USER": "1"}), runner=no_runner)
    extract_files(job)
    document["slots"] = [{"slot": 104, "name": "User_Id", "op": "hash", "of": "user"}]
    with pytest.raises(
        InputError, match=r"table would have columns 'user_id' and 'User_Id', one name to Delta"
    ):
        extract_files(replace(job, spec=load_spec(document), run_id="r2"), runner=no_runner)


def test_a_partition_key_and_a_column_may_not_share_a_name(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 10)
    with pytest.raises(InputError, match="partition key 'user' is also the name of a column"):
        extract_files(replace(job, partition={"user": "1"}), runner=no_runner)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"partition": {"month": ""}},
            "partition: expected a key and a value, found 'month' and ''",
        ),
        (
            {"partition": {"month": "__HIVE_DEFAULT_PARTITION__"}},
            "found 'month' and '__HIVE_DEFAULT_PARTITION__'",
        ),
        ({"partition": {"": "1"}}, "found '' and '1'"),
        (
            {"partition": {"month": 5}},
            "partition: key 'month': expected the value as text, found 5; write '5'",
        ),
        (
            {"partition": {"month": "x" * 300}},
            "'month=x+.*' would have a name of 306 bytes: expected at most 255",
        ),
        (
            {"partition": {"month": 10**6_000}},
            "expected the value as text, found an integer of about 6,000 digits",
        ),
        (
            {"partition_from_path": "month"},
            "partition_from_path: expected a list of keys, found the text 'month'",
        ),
        (
            {"partition_from_path": ["month"]},
            "'month' is given as '1' and also in partition_from_path; remove one of them",
        ),
    ],
)
def test_a_partition_that_cannot_be_is_refused(
    job: ExtractJob, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replace(job, **changed)


def test_a_raw_column_that_contradicts_the_partition_stops_the_run(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 100, month="2")
    with pytest.raises(
        InputError,
        match=r"a\.parquet, rows 0 to 99: the raw column 'month' holds '2', the partition says '1'",
    ):
        extract_files(job)


def test_an_operator_that_fails_names_slot_operator_file_and_row(
    job: ExtractJob, document: Any, write_raw: Any
) -> None:
    document["slots"].append(
        {"slot": 104, "name": "strict", "op": "my_operators:strict", "of": "price"}
    )
    path = write_raw("a.parquet", 300)
    prices = [float(row) for row in range(300)]
    prices[260] = prices[290] = -1.0
    pq.write_table(
        pq.read_table(path).set_column(2, "price", pa.array(prices)), path, row_group_size=40
    )
    message = (
        r"^\S*a\.parquet, row 260: strict \(my_operators:strict\): LookupError: no price below 0$"
    )
    with pytest.raises(OperatorError, match=message):
        extract_files(replace(job, spec=load_spec(document)))
    assert not list(Path(job.table_url).rglob("*.parquet"))


def write_prices(directory: Path, name: str, prices: list[Any]) -> None:
    """A raw file whose prices are uint64: those above int64 are malformed longs."""
    rows = {
        "user": ["u"] * len(prices),
        "tags": [["t"]] * len(prices),
        "clicked": [1] * len(prices),
    }
    put_parquet(
        directory / name, {**rows, "price": pa.array(prices, pa.uint64())}, row_group_size=40
    )


@pytest.fixture
def skipping(job: ExtractJob, document: Any) -> ExtractJob:
    document["inputs"] = document["inputs"] | {"price": {"type": "long", "on_error": "skip"}}
    document["keep"] = ["price"]
    return replace(job, spec=load_spec(document))


def test_skipped_rows_are_left_out_in_order_counted_and_shown(
    skipping: ExtractJob, raw: Path
) -> None:
    prices = list(range(300))
    bad = {7: 2**63, 150: 2**64 - 1, 151: 2**63 + 1, 299: 2**63 + 2}
    for row, price in bad.items():
        prices[row] = price
    write_prices(raw, "a.parquet", prices)
    write_prices(raw, "b.parquet", [2**63])
    report = extract_files(skipping)
    assert (report.num_rows, report.num_rows_skipped, report.counts) == (
        296,
        5,
        {"price: out of range": 5},
    )
    assert [row["price"] for row in table_rows(skipping.table_url)] == [
        price for price in prices if price < 2**63
    ]
    assert [(e.source, e.row, e.value) for e in report.examples] == [
        (str(raw / "a.parquet"), row, str(bad[row])) for row in (7, 150, 151)
    ]
    lines = str(report).splitlines()
    assert lines[1] == "5 rows skipped"
    assert lines[2].startswith(
        f"price: out of range: 5, such as {2**63} ({raw}/a.parquet, row 7); {2**64 - 1} ("
    )
    metadata = history(skipping.table_url)[0].metadata
    assert metadata is not None
    assert (metadata.num_rows_skipped, metadata.num_rows) == (5, 296)
    again = extract_files(replace(skipping, run_id="r2"))
    assert not again.committed
    assert str(again).splitlines()[1:] == ["5 rows skipped", "price: out of range: 5"]


def test_a_partition_whose_rows_are_all_skipped_is_replaced_by_none(
    skipping: ExtractJob, raw: Path
) -> None:
    job = replace(skipping, partition={}, partition_from_path=("month",))
    for month in (1, 2):
        write_prices(raw, f"month={month}/a.parquet", [1, 2])
    extract_files(job)
    write_prices(raw, "month=2/a.parquet", [2**63] * 50)
    report = extract_files(replace(job, run_id="r2"))
    assert (report.num_rows, report.num_rows_skipped, report.num_files) == (2, 50, 1)
    assert open_delta(job.table_url).partitions == ({"month": "1"},)
    assert len(list((Path(job.table_url) / "month=2").glob("*.parquet"))) == 1


def test_if_all_rows_are_skipped_the_table_is_left_as_it_is(
    skipping: ExtractJob, raw: Path
) -> None:
    write_prices(raw, "a.parquet", [2**63] * 50)
    message = (
        rf"^all 50 rows are skipped as malformed \(price: out of range {2**63} \(.*a\.parquet, row "
        rf"0\)\); the table is left"
    )
    with pytest.raises(InputError, match=message):
        extract_files(skipping)
    assert not list(Path(skipping.table_url).rglob("*.parquet"))


def test_a_malformed_value_that_fails_names_file_row_and_value(
    skipping: ExtractJob, document: Any, raw: Path
) -> None:
    document["inputs"]["price"] = {"type": "long", "on_error": "fail"}
    write_prices(raw, "a.parquet", [*range(100), 2**63])
    message = (
        rf"^\S*a\.parquet, row 100: column 'price': expected long, found {2**63} \(out of range\), "
        rf"and on_error says fail$"
    )
    with pytest.raises(InputError, match=message):
        extract_files(replace(skipping, spec=load_spec(document)))
    assert not list(Path(skipping.table_url).rglob("*.parquet"))


def test_one_file_may_lack_an_optional_column_or_have_it_in_another_type(
    job: ExtractJob, document: Any, raw: Path
) -> None:
    document["inputs"] = document["inputs"] | {
        "price": {"type": "long", "optional": True, "on_error": "null"}
    }
    write_prices(raw, "a.parquet", [1, 2])
    for name, table in (("b", pq.read_table(raw / "a.parquet").drop_columns("price")), ("c", None)):
        changed = table or pq.read_table(raw / "a.parquet").set_column(
            3, "price", pa.array([["1"], None])
        )
        pq.write_table(changed, raw / f"{name}.parquet")
    report = extract_files(replace(job, spec=load_spec(document)))
    assert (report.num_rows, dict(report.counts)) == (
        6,
        {"price: column absent": 2, "price: wrong type": 1},
    )
    assert [f"{example.what} {example}" for example in report.examples] == [
        f"column absent {raw}/b.parquet",
        f"wrong type ['1'] ({raw}/c.parquet, row 0)",
    ]


def test_progress_counts_files_and_rows(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 533)
    seen: list[tuple[int, int, int]] = []
    extract_files(job, progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (3, 3, 533)
    assert seen == sorted(seen, key=lambda counts: (counts[2], counts[0]))


def groups_of(file: Any) -> list[int]:
    footer = pq.read_metadata(file.url)
    return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]


def sized(job: ExtractJob, name: str, **output: Any) -> ExtractJob:
    """The job with one raw unit, other sizes of files, and a table of its own."""
    options = {"rows_per_row_group": 100, "rows_per_file": 1000, **output}
    spec = replace(job.spec, output=OutputOptions(**options))
    return replace(job, spec=spec, table_url=f"{job.table_url}-{name}", run_id=name)


def test_files_end_with_the_row_group_that_brings_them_nearest_to_bytes_per_file(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 950)
    whole = sized(job, "whole")
    assert extract_files(whole).num_files == 1
    [file] = open_delta(whole.table_url).data_files
    assert groups_of(file) == [*[100] * 9, 50]
    first = pq.read_metadata(file.url).row_group(0)
    group_bytes = sum(first.column(place).total_compressed_size for place in range(5))
    for share, expected in ((0.1, 1), (1.2, 1), (1.8, 2), (3.2, 3), (40, 10)):
        cut = sized(job, f"cut{share}", bytes_per_file=int(share * group_bytes))
        report = extract_files(cut)
        files = open_delta(cut.table_url).data_files
        found = [groups_of(file) for file in files]
        assert [size for of_file in found for size in of_file] == [*[100] * 9, 50]
        assert {len(of_file) for of_file in found[:-1]} <= {expected}
        assert report.num_files == len(files) == -(-10 // expected)
        assert report.num_rows == 950
        assert report.counts == extract_files(replace(whole, run_id="again")).counts
        rows = [open_table(url).to_arrow() for url in (cut.table_url, whole.table_url)]
        assert rows[0].equals(rows[1])


def test_the_smaller_of_rows_and_bytes_per_file_counts(job: ExtractJob, write_raw: Any) -> None:
    """Also where one raw row group is larger than a file."""
    put_parquet(write_raw("a.parquet", 1), raw_rows(950), row_group_size=950)
    narrow = sized(job, "narrow", rows_per_file=250, bytes_per_file=10**9)
    assert extract_files(narrow).num_files == 4
    files = open_delta(narrow.table_url).data_files
    assert [groups_of(file) for file in files] == [*[[100, 100, 50]] * 3, [100, 100]]
    wide = sized(job, "wide", rows_per_file=250, bytes_per_file=1)
    assert extract_files(wide).num_files == 10


def test_statistics_of_units_with_several_files_are_those_of_one_file(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 950)
    profiles = []
    for name, bytes_per_file in (("one", 10**9), ("several", 1)):
        made = sized(job, name, bytes_per_file=bytes_per_file)
        extract_files(made)
        profiles.append(open_table(made.table_url).profile(stored=True).table)
        assert len(list((Path(made.table_url) / "_stats").rglob("*.statistics"))) == 1
    assert profiles[0].equals(profiles[1])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_changes_no_byte(
    job: ExtractJob, write_raw: Any, num_threads: int
) -> None:
    write_raw("a.parquet", 533)
    runner = LocalRunner(num_threads)
    reports: list[UnitReport] = []

    def run(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        reports.extend(runner(task, units, progress))
        return reports

    extract_files(job, runner=run)
    crc32s = [report.crc32 for report in sorted(reports, key=lambda report: report.path)]
    again: ExtractReport = extract_files(replace(job, table_url=f"{job.table_url}2", run_id="r2"))
    files = open_delta(again.table_url).data_files
    assert crc32s == [zlib.crc32(Path(file.url).read_bytes()) for file in files]
    assert crc32s == [file.crc32 for file in files]


def test_the_threads_are_counted_where_affinity_is_unknown(
    job: ExtractJob, write_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    write_raw("a.parquet", 100)
    assert extract_files(job, runner=LocalRunner()).num_rows == 100


def test_an_input_in_directories_of_partitions_needs_a_partition_or_no_partition(
    job: ExtractJob, write_raw: Any
) -> None:
    for day in ("2026-11-01", "2026-11-02"):
        write_raw(f"dt={day}/a.parquet", 50)
    bare = replace(job, partition={})
    # The directory may also lie above the input.
    for url in (job.input_url, f"{job.input_url}/dt=2026-11-01", f"{job.input_url}/*/a.parquet"):
        with pytest.raises(InputError, match=r"expected a partition, .* --partition-from-path dt "):
            extract_files(replace(bare, input_url=url))
    assert not Path(job.table_url).exists()
    with pytest.raises(InputError, match=r"expected a partition, found none; .*no_partition=True"):
        api.extract(job.spec, job.input_url, job.table_url)
    extract_files(replace(bare, partition_from_path=("dt",)))
    assert len(open_delta(job.table_url).partitions) == 2
    # Days are a partition: no other is needed.
    days = api.extract(
        job.spec, f"{job.input_url}/dt={{dt}}", f"{job.table_url}3", days="2026-11-01"
    )
    assert days.num_extracted == 1
    whole = replace(bare, no_partition=True, table_url=f"{job.table_url}2")
    assert extract_files(whole).partitions == ({},)
    with pytest.raises(InputError, match=r"no_partition: .* found the keys \['month', 'dt'\]"):
        replace(job, partition_from_path=("dt",), no_partition=True)
