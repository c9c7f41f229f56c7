"""Rows of one key side by side: the same rows as without it, in other places."""

import signal
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.explore.table import open_table
from featstore.extraction.days import extract_days
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.blocks import Blocks
from featstore.extraction.units.buckets import cut_unit, plan_buckets, write_bucket
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.raw import find_raw_files, plan_units
from featstore.extraction.units.unit import UnitTask, ignore_progress
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import history, open_delta, open_delta_or_none
from featstore.table.layout import unit_and_part
from tests.parquet_files import put_parquet
from tests.process import num_unnamed_files, our_files
from tests.programs import run_python

SLOTS = [
    {"slot": 101, "name": "user_id", "op": "hash", "of": "user"},
    {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 3},
]
MORE = {"slot": 103, "name": "user_x_tags", "op": "cross", "of": ["user", "tags"]}


def spec_of(cluster_by: str | None = "user", **more: Any) -> Spec:
    output = {"rows_per_row_group": 30, "rows_per_file": 100, "cluster_by": cluster_by}
    document = {
        "spec": 1,
        "inputs": {"user": "string", "tags": "list<string>", "at": "long"},
        "keep": ["user", "at"],
        "slots": SLOTS,
        "output": output | more.pop("output", {}),
    }
    return load_spec(document | more)


def rows_of(users: list[str | None], first: int = 0) -> pa.Table:
    tags = [[f"t{i}"] * (i % 4) if i % 5 else None for i in range(len(users))]
    columns = {
        "user": pa.array(users, pa.string()),
        "tags": pa.array(tags, pa.list_(pa.string())),
        "at": pa.array(range(first, first + len(users)), pa.int64()),
    }
    return pa.table(columns)


def users_of(num_rows: int) -> list[str | None]:
    return [None if row % 11 == 0 else f"u{row * row % 23}" for row in range(num_rows)]


def test_rows_of_many_small_files_go_into_few_blocks(tmp_path: Path) -> None:
    """Each batch of the second pass looks into each block."""
    for number in range(40):
        put_parquet(tmp_path / "raw" / f"{number:02}.parquet", rows_of(["a", "b"], 2 * number))
    spec = spec_of()
    [unit] = plan_units(find_raw_files(str(tmp_path / "raw"), {}, []), 1_000)
    task = UnitTask(spec=spec, table_url=str(tmp_path / "table"), run_id="run", tag="t")
    blocks = list(cut_unit(task, unit, range(1)))
    assert [block.rows.num_rows for block in blocks] == [80]


@pytest.fixture
def job(raw: Path, tmp_path: Path) -> ExtractJob:
    """A day of 600 rows in two raw files."""
    put_parquet(raw / "a.parquet", rows_of(users_of(400)), row_group_size=40)
    put_parquet(raw / "b.parquet", rows_of(users_of(200), 400), row_group_size=40)
    url = str(tmp_path / "table")
    return ExtractJob(spec=spec_of(), input_url=str(raw), table_url=url, partition={"dt": "1"})


def plainly(job: ExtractJob) -> ExtractJob:
    """The same without `cluster_by`, into another table."""
    url = f"{job.table_url}-plain"
    return replace(job, spec=spec_of(None), table_url=url, run_id="plain")


def row_groups_of(paths: list[Path]) -> list[polars.DataFrame]:
    groups = list[polars.DataFrame]()
    for path in paths:
        with pq.ParquetFile(path) as file:
            groups += (polars.DataFrame(file.read_row_group(i)) for i in range(file.num_row_groups))
    return groups


def files_of(job: ExtractJob) -> list[Path]:
    return [Path(file.url) for file in open_delta(job.table_url).data_files]


def rows_in(job: ExtractJob) -> polars.DataFrame:
    return polars.DataFrame(open_table(job.table_url).to_arrow()).sort("at")


def check_order(paths: list[Path]) -> None:
    """Each user's rows follow each other, in files of one bucket, and are by time."""
    by_bucket: dict[int, list[Path]] = {}
    for path in paths:
        by_bucket.setdefault((unit_and_part(path.name) or (0, 0))[0], []).append(path)
    seen = set[str]()
    for own in by_bucket.values():
        rows = polars.concat(row_groups_of(own))
        for _, of_user in rows.group_by(rows["user"].rle_id(), maintain_order=True):
            names = set(of_user["user"])
            assert len(names) == 1
            assert of_user["at"].is_sorted()
            assert not seen & names
            seen |= names - {None}


def test_a_table_has_the_same_rows_and_figures_by_key(job: ExtractJob) -> None:
    seen: list[tuple[int, int, int]] = []
    report = extract_files(job, progress=lambda *counts: seen.append(counts))
    plain = extract_files(plainly(job))
    assert rows_in(job).equals(rows_in(plainly(job)))
    check_order(files_of(job))
    assert [report.num_rows, report.counts, report.examples] == [600, plain.counts, ()]
    assert seen[-1] == (7, 7, 600)
    profiles = [open_table(url).profile() for url in (job.table_url, plainly(job).table_url)]
    assert profiles[0].to_polars().equals(profiles[1].to_polars())


@settings(max_examples=settings().max_examples // 6)
@given(
    st.lists(
        st.lists(st.none() | st.sampled_from("abcdef"), min_size=1, max_size=60),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 20),
    st.integers(0, 40),
)
def test_any_rows_are_the_same_as_without(
    tmp_path_factory: pytest.TempPathFactory,
    users: list[list[str | None]],
    rows_per_row_group: int,
    more: int,
) -> None:
    place = tmp_path_factory.mktemp("rows")
    for i, own in enumerate(users):
        put_parquet(place / f"raw/{i}.parquet", rows_of(own, 1000 * i), row_group_size=7)
    output = {"rows_per_row_group": rows_per_row_group, "rows_per_file": rows_per_row_group + more}
    found = []
    for key in (None, "user"):
        spec = spec_of(key, output=output)
        url = str(place / str(key))
        task = UnitTask(spec=spec, table_url=url, run_id="run", tag="tag")
        units = plan_units(find_raw_files(str(place / "raw"), {}, []), spec.output.rows_per_file)
        reports = LocalRunner(2)(task, units, ignore_progress)
        assert sum(report.num_rows for report in reports) == sum(map(len, users))
        paths = sorted(Path(url).glob("*.parquet"))
        assert all(pq.read_metadata(path).num_rows <= output["rows_per_file"] for path in paths)
        found.append((polars.concat(row_groups_of(paths)).sort("at"), paths))
    [(plain, _), (clustered, paths)] = found
    assert clustered.equals(plain)
    check_order(paths)


def test_the_bytes_do_not_depend_on_how_rows_are_cut_into_blocks(job: ExtractJob) -> None:
    found = list[list[bytes]]()
    for block_bytes in (1, 1_000, 1 << 20):
        url = f"{job.table_url}-{block_bytes}"
        task = UnitTask(spec=job.spec, table_url=url, run_id="run", tag="tag")
        units = plan_units(find_raw_files(job.input_url, {}, []), job.spec.output.rows_per_file)
        cuts, buckets = plan_buckets(units, job.spec.output.rows_per_file)
        with Blocks(Extractor(task.spec).schema.to_arrow()) as blocks:
            # As on Spark, where a bucket gets its part of a block, in any order.
            for unit, numbers in reversed(cuts):
                for block in cut_unit(task, unit, numbers, block_bytes):
                    for part in block.split():
                        ends = [part.rows.num_rows]
                        message = part.to_bytes()
                        blocks.add_message(part.place, message, part.first_bucket, ends)
            for bucket in buckets:
                write_bucket(task, bucket, blocks)
        found.append([path.read_bytes() for path in sorted(Path(url).glob("*.parquet"))])
    assert found[0] == found[1] == found[2]
    extract_files(job)
    assert found[0] == [path.read_bytes() for path in files_of(job)]


def test_buckets_are_those_of_each_partition(job: ExtractJob, raw: Path) -> None:
    for day in ("1", "2"):
        part = rows_of(users_of(150), 150 * int(day))
        put_parquet(raw / f"day={day}" / "a.parquet", part, row_group_size=40)
    days = replace(job, input_url=f"{raw}/day=*", partition={}, partition_from_path=("day",))
    extract_files(days)
    files = open_delta(days.table_url).data_files
    assert {file.partition["day"]: file.num_rows for file in files} != {}
    for day in ("1", "2"):
        own = [Path(file.url) for file in files if file.partition["day"] == day]
        check_order(own)
        assert sum(map(len, row_groups_of(own))) == 150
    extract_files(replace(plainly(days), partition={}, partition_from_path=("day",)))
    assert rows_in(days).equals(rows_in(plainly(days)))


def test_malformed_rows_are_skipped_and_told_as_without(job: ExtractJob, raw: Path) -> None:
    broken = pa.array([b"\xff" if row % 7 == 0 else b"u" for row in range(100)])
    put_parquet(raw / "c.parquet", rows_of([None] * 100, 900).set_column(0, "user", broken))
    inputs = {
        "user": {"type": "string", "on_error": "skip"},
        "tags": "list<string>",
        "at": "long",
    }
    skipping = replace(job, spec=spec_of(inputs=inputs))
    report = extract_files(skipping)
    plain = replace(plainly(job), spec=spec_of(None, inputs=inputs))
    without = extract_files(plain)
    assert report.num_rows_skipped == without.num_rows_skipped == 15
    assert report.num_rows == without.num_rows == 685
    assert [report.counts, report.examples] == [without.counts, without.examples]
    assert rows_in(skipping).equals(rows_in(plain))
    only = replace(skipping, input_url=f"{raw}/c.parquet", table_url=f"{job.table_url}2")
    put_parquet(
        raw / "c.parquet", rows_of([None] * 8).set_column(0, "user", broken[:1].take([0] * 8))
    )
    with pytest.raises(InputError, match="all 8 rows are skipped as malformed"):
        extract_files(only)


def test_an_equal_run_commits_nothing_also_if_only_the_order_differs(job: ExtractJob) -> None:
    first = extract_files(job)
    again = extract_files(replace(job, run_id="again"))
    other = extract_files(replace(job, run_id="other", spec=spec_of(None)))
    assert [first.committed, again.committed, other.committed] == [True, False, False]
    files = [path.read_bytes() for path in files_of(job)]
    twice = replace(job, table_url=f"{job.table_url}2")
    extract_files(twice, runner=LocalRunner(1))
    assert [path.read_bytes() for path in files_of(twice)] == files


def test_days_are_known_by_their_input(job: ExtractJob, raw: Path) -> None:
    put_parquet(raw / "dt=2026-11-01" / "a.parquet", rows_of(users_of(120)))
    days = replace(job, input_url=f"{raw}/dt={{dt}}", partition={})
    reports = [extract_days(replace(days, run_id=run), "2026-11-01") for run in ("a", "b")]
    assert [report.num_extracted for report in reports] == [1, 0]
    check_order(files_of(days))


@pytest.mark.parametrize("when", ["rows", "files"])
def test_a_run_that_fails_in_either_pass_leaves_nothing(job: ExtractJob, when: str) -> None:
    before = num_unnamed_files(), our_files()

    def failing(num_files: int, num_files_total: int, num_rows: int) -> None:
        if num_rows and (when == "rows" or num_files):
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        extract_files(job, progress=failing)
    assert open_delta_or_none(job.table_url) is None
    assert [path for path in Path(job.table_url).rglob("*") if path.is_file()] == []
    assert (num_unnamed_files(), our_files()) == before


KILLED = """
import os, signal, sys
import featstore

def kill(num_files, num_files_total, num_rows):
    if num_files == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    spec, raw, table = sys.argv[1:]
    featstore.extract(spec, raw, table, partition={"dt": "1"}, spark=None, progress=kill)
"""


def test_a_run_that_is_killed_between_files_leaves_no_version_and_no_temporary_file(
    job: ExtractJob, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "{spec: 1, inputs: {user: string, at: long}, keep: [user, at], slots: [{slot: 1, name: u, "
        "op: hash, of: user}], output: {cluster_by: user, rows_per_row_group: 30, "
        "rows_per_file: 100}}"
    )
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    run_python(
        program,
        *(spec, job.input_url, job.table_url),
        status=-signal.SIGKILL,
        variables={"TMPDIR": str(temporary)},
    )
    assert list(Path(job.table_url).rglob("part-*.parquet"))
    assert open_delta_or_none(job.table_url) is None
    assert list(temporary.iterdir()) == []
    extract_files(job)
    assert len(rows_in(job)) == 600


def group_of(job: ExtractJob, **more: Any) -> GroupJob:
    spec = replace(job.spec, nodes=spec_of(slots=[*SLOTS, MORE]).nodes)
    return GroupJob(job=replace(job, spec=spec, run_id="more"), name="more", **more)


def test_a_slot_group_is_matched_by_key_only(job: ExtractJob) -> None:
    extract_files(job)
    said = r"expected rows in the order of the raw rows, by which its rows are matched, found them "
    with pytest.raises(InputError, match=said + "clustered by 'user' .*; use --key"):
        extract_group(group_of(job))
    # Files that were written again say so, too.
    delete_rows(job.table_url, "at = 17")
    with pytest.raises(InputError, match=said):
        extract_group(group_of(replace(job, spec=spec_of(None))))
    extract_group(group_of(job, key="at"))
    whole = replace(group_of(plainly(job)).job, table_url=f"{job.table_url}2")
    extract_files(whole)
    expected = rows_in(whole).filter(polars.col("at") != 17)
    assert rows_in(job).select(expected.columns).equals(expected)


def test_a_group_is_matched_by_input_where_only_its_spec_says_cluster_by(job: ExtractJob) -> None:
    plain = plainly(job)
    extract_files(plain)
    extract_group(group_of(replace(plain, spec=spec_of())))
    extract_files(group_of(job).job)
    assert rows_in(plain).equals(rows_in(job).select(rows_in(plain).columns))


def test_the_log_tells_the_run_as_without(job: ExtractJob) -> None:
    extract_files(job)
    extract_files(plainly(job))
    told = [history(of.table_url)[0].metadata for of in (job, plainly(job))]
    assert None not in told
    facts = attrgetter("spec_hash", "input_digest", "partitions", "num_rows", "num_raw_files")
    assert facts(told[0]) == facts(told[1])


PEAK = """
import re, sys
import numpy as np, pyarrow as pa
import featstore
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from pathlib import Path
from tests.parquet_files import put_parquet

if __name__ == "__main__":
    place, num_files = Path(sys.argv[1]), int(sys.argv[2])
    spec = featstore.load_spec(
        {
            "spec": 1,
            "inputs": {"user": "long", "items": "list<long>"},
            "slots": [
                {"slot": 1, "name": "user", "op": "hash", "of": "user"},
                {"slot": 2, "name": "items", "op": "hash", "of": "items"},
            ],
            "output": {
                "rows_per_row_group": 4096, "rows_per_file": 16384, "cluster_by": "user",
            },
        }
    )
    random = np.random.default_rng(1)
    offsets = pa.array(np.arange(0, 16_385 * 200, 200, dtype=np.int32))
    for i in range(num_files):
        items = pa.array(random.integers(0, 1 << 40, 16_384 * 200))
        users = pa.array(random.integers(0, 2_000, 16_384))
        rows = pa.table({"user": users, "items": pa.ListArray.from_arrays(offsets, items)})
        put_parquet(place / f"raw/{i:02d}.parquet", rows, row_group_size=4096)
    urls = {"input_url": str(place / "raw"), "table_url": str(place / "table")}
    # One thread: the more units run at once the higher the peak, as chance will have it.
    extract_files(ExtractJob(spec=spec, no_partition=True, **urls), runner=LocalRunner(1))
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PEAK)
    peaks = list[int]()
    for num_files in (4, 24):
        place = tmp_path / str(num_files)
        path = {"PYTHONPATH": str(Path(__file__).parents[2])}
        peaks.append(int(run_python(program, place, num_files, variables=path).stdout))
    # 20 files more are 524 MB of values: 26 MB each.
    assert peaks[1] - peaks[0] < 150_000_000
