"""Raw files that change while they are read: an error that names them, and nothing is committed;
what is no change is none.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import InputError
from featstore.explore.table import open_table
from featstore.extraction.by_key import run_by_key
from featstore.extraction.fit import fit_spec, fit_units
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.spark.runners import SparkRunner
from featstore.extraction.units import raw as raw_module
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport
from featstore.spec.parse import load_spec
from featstore.table import parquet_dir
from featstore.table.delta import open_delta
from tests.parquet_files import put_parquet

NUM_ROWS = 120_000  # more than a batch
Change = Callable[[Path], None]
CHANGED = (
    r"log\.parquet changed while it was read: expected .*, found .*; nothing is committed: run it "
    r"again"
)


PRICE = {"slot": 1, "name": "cost", "op": "identity", "of": "price"}
LOG = {"slot": 2, "name": "price_log", "op": "log1p", "of": "price"}


def spec_of(rows_per_file: int = NUM_ROWS, slots: Sequence[Any] = (PRICE,)) -> Any:
    document = {
        "spec": 1,
        "inputs": {"row": "long", "price": "double"},
        "keep": ["row"],
        "slots": list(slots),
        "output": {"rows_per_row_group": 10_000, "rows_per_file": rows_per_file},
    }
    return load_spec(document)


def write(path: Path, num_rows: int = NUM_ROWS, seed: int = 1) -> None:
    """Six row groups, each of which takes as many bytes whatever its values are."""
    prices = np.random.default_rng(seed).random(num_rows)
    put_parquet(
        path,
        {"row": np.arange(num_rows), "price": prices},
        row_group_size=num_rows // 6 or 1,
        use_dictionary=False,
        compression="none",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "raw" / "log.parquet")
    return tmp_path / "raw" / "log.parquet"


@pytest.fixture
def job(path: Path, tmp_path: Path) -> ExtractJob:
    return ExtractJob(
        spec=spec_of(),
        input_url=str(path.parent),
        table_url=str(tmp_path / "table"),
        partition={"dt": "1"},
        run_id="r1",
    )


def write_half_in_place(path: Path) -> None:
    new = path.with_suffix(".new")
    write(new, NUM_ROWS // 2)
    path.write_bytes(new.read_bytes())
    new.unlink()


def replace_by_half(path: Path) -> None:
    new = path.with_suffix(".new")
    write(new, NUM_ROWS // 2)
    new.replace(path)


def replace_by_a_file_of_equal_size_and_time(path: Path) -> None:
    before, new = path.stat(), path.with_suffix(".new")
    write(new, seed=2)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def write_other_values_in_place(path: Path) -> None:
    size_bytes = path.stat().st_size
    write(path, seed=2)
    assert path.stat().st_size == size_bytes


def replace_by_other_columns(path: Path) -> None:
    pq.write_table(pa.table({"else": [1]}), path)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


CHANGES = [
    write_half_in_place,
    replace_by_half,
    replace_by_a_file_of_equal_size_and_time,
    write_other_values_in_place,
    replace_by_other_columns,
    truncate,
    empty,
    remove,
]


class Changing:
    """A progress report that changes the file when its first batch of rows was extracted, once."""

    def __init__(self, change: Change, path: Path) -> None:
        self._change, self._path = change, path
        self.num_rows_before: int | None = None

    def __call__(self, num_files: int, num_files_total: int, num_rows: int) -> None:
        if num_rows and self.num_rows_before is None:
            self.num_rows_before = num_rows
            self._change(self._path)


def assert_nothing_written(job: ExtractJob) -> None:
    assert not list(Path(job.table_url).rglob("*.parquet"))
    assert not Path(job.table_url, "_delta_log").exists()


@pytest.mark.parametrize(
    "rows_per_file", [NUM_ROWS, NUM_ROWS // 6], ids=["in one unit", "in six units"]
)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_raw_file_that_changes_in_mid_read_is_named_and_nothing_is_committed(
    job: ExtractJob, path: Path, change: Change, rows_per_file: int
) -> None:
    changing = Changing(change, path)
    with pytest.raises(InputError, match=CHANGED):
        extract_files(
            replace(job, spec=spec_of(rows_per_file)), runner=LocalRunner(1), progress=changing
        )
    assert changing.num_rows_before is not None
    assert 0 < changing.num_rows_before < NUM_ROWS
    assert_nothing_written(job)
    write(path)
    assert extract_files(job).num_rows == NUM_ROWS


class Later:
    """A runner that begins after the file has changed, which was listed before."""

    def __init__(self, run: Any, change: Change, path: Path) -> None:
        self._run, self._change, self._path = run, change, path

    def __call__(self, task: Any, units: Sequence[Any], progress: Progress) -> list[UnitReport]:
        self._change(self._path)
        reports: list[UnitReport] = self._run(task, units, progress)
        return reports


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_raw_file_that_changes_between_listing_and_reading_is_named_and_nothing_is_committed(
    job: ExtractJob, path: Path, change: Change
) -> None:
    with pytest.raises(InputError, match=CHANGED):
        extract_files(job, runner=Later(LocalRunner(), change, path))
    assert_nothing_written(job)


def test_a_raw_file_that_changes_is_named_by_sparks_tasks(
    spark: Any, job: ExtractJob, path: Path
) -> None:
    for change in (replace_by_half, replace_by_a_file_of_equal_size_and_time, truncate):
        write(path)
        with pytest.raises(InputError, match=CHANGED):
            extract_files(job, runner=Later(SparkRunner(spark), change, path))
        assert_nothing_written(job)
    write(path)
    assert extract_files(job, runner=SparkRunner(spark)).num_rows == NUM_ROWS


def test_the_message_says_what_was_expected_and_what_was_found(job: ExtractJob, path: Path) -> None:
    before, sizes = path.stat(), [path.stat().st_size, path.stat().st_size // 2]
    expected = (
        f"expected {sizes[0]:,} bytes, modified {before.st_mtime_ns} ns after 1970, inode "
        f"{before.st_ino}"
    )
    with pytest.raises(
        InputError,
        match=re.escape(f"{path} changed while it was read: {expected}, found {sizes[1]:,} bytes"),
    ):
        extract_files(job, runner=Later(LocalRunner(), truncate, path))
    write(path)
    with pytest.raises(InputError, match="found no such file; nothing is committed"):
        extract_files(job, runner=Later(LocalRunner(), remove, path))


def test_a_new_link_other_permissions_and_a_read_are_no_change(
    job: ExtractJob, path: Path, tmp_path: Path
) -> None:
    def touch_all_but_the_content(path: Path) -> None:
        changed_ns = path.stat().st_ctime_ns
        path.chmod(0o600)
        (tmp_path / "link").hardlink_to(path)
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
        assert path.stat().st_ctime_ns > changed_ns

    report = extract_files(job, runner=Later(LocalRunner(), touch_all_but_the_content, path))
    assert report.num_rows == NUM_ROWS


@pytest.mark.parametrize("key", [None, "row"])
def test_a_raw_file_that_changes_under_a_slot_group_is_named_and_the_table_is_as_it_was(
    job: ExtractJob, path: Path, key: str | None
) -> None:
    extract_files(job)
    group = GroupJob(
        job=replace(job, spec=spec_of(slots=[PRICE, LOG]), run_id="more"), name="more", key=key
    )
    units, partitions = (
        Later(run, write_other_values_in_place, path) for run in (LocalRunner(), run_by_key)
    )
    with pytest.raises(InputError, match=CHANGED):
        extract_group(group, runner=units, run_keyed=partitions)
    assert open_delta(job.table_url).version == 0
    assert open_table(job.table_url).to_arrow().num_rows == NUM_ROWS


def test_a_file_without_rows_that_had_some_when_it_was_listed_is_named(
    job: ExtractJob, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is read, so that only a second look can show it."""
    write(path.with_name("other.parquet"))
    each_footer, changed = parquet_dir.each_footer, []

    def read_later(urls: Sequence[str], *how: Any) -> Any:
        write(path, 0)
        changed.append(path)
        return each_footer(urls, *how)

    monkeypatch.setattr(raw_module, "each_footer", read_later)
    with pytest.raises(InputError, match=CHANGED):
        extract_files(job)
    assert changed == [path]
    assert_nothing_written(job)
    monkeypatch.undo()
    assert extract_files(job).num_rows == NUM_ROWS


def test_nothing_is_fitted_on_a_raw_file_that_changes(path: Path) -> None:
    scaled = {"slot": 1, "name": "price", "op": "standardize", "of": "price"}
    spec = load_spec({"spec": 1, "inputs": {"price": "double"}, "slots": [scaled]})
    changed: list[Path] = []

    def run(task: Any, units: Sequence[Unit]) -> Any:
        write_half_in_place(path)
        changed.append(path)
        return [fit_units(task, units)]

    with pytest.raises(InputError, match=CHANGED):
        fit_spec(spec, str(path.parent), run)
    assert changed == [path]
