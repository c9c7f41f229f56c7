"""A bit of a data file that changes on the way from the store, or where it lies: never trained on,
never kept in the cache.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DataFileError
from featstore.decoded.file_sources import FileSource, files_in_place, stage_items, staging_source
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.explore.table import Table, open_table
from featstore.extraction.job import ExtractJob, extract_files
from featstore.loader.batches.split_reader import SplitReader, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.shuffle import RowOrder
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import resolve
from featstore.reading.open_file import OpenFile
from featstore.spec.parse import load_spec
from featstore.staging import Stager, Staging
from featstore.table.open import open_snapshot
from featstore.table.snapshot import FileList
from tests.parquet_files import put_parquet

NUM_ROWS, GROUP_ROWS, FILE_ROWS = 600, 100, 300
SPEC = {
    "spec": 1,
    "inputs": {"row": "double", "user": "string", "tags": "list<string>", "clicked": "double"},
    "labels": {"click": "clicked"},
    "slots": [
        {"slot": 1, "name": "row", "op": "identity", "of": "row"},
        {"slot": 2, "name": "user", "op": "hash", "of": "user"},
        {"slot": 3, "name": "tags", "op": "hash", "of": "tags"},
    ],
    "output": {"rows_per_row_group": GROUP_ROWS, "rows_per_file": FILE_ROWS},
}
STAGED = ["whole", "ranges"]


@pytest.fixture(scope="module")
def table_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two files of three row groups, of ids that are all different: what is damaged in them decodes
    without an error.
    """
    root = tmp_path_factory.mktemp("changed")
    rows = range(NUM_ROWS)
    columns = {"row": map(float, rows), "user": (f"user {row}" for row in rows)}
    columns |= {
        "tags": ([f"{row}-{i}" for i in range(3)] for row in rows),
        "clicked": (row % 2.0 for row in rows),
    }
    put_parquet(
        root / "raw" / "a.parquet",
        {name: list(of) for name, of in columns.items()},
        row_group_size=100,
    )
    raw, table = str(root / "raw"), str(root / "table")
    extract_files(
        ExtractJob(spec=load_spec(SPEC), input_url=raw, table_url=table, partition={"dt": "1"})
    )
    return str(root / "table")


def served(table_url: str, loopback: Any, *, has_crc32: bool = True) -> Any:
    """The table with its files on the server; whether the commit's checksums of them are known."""
    local = open_snapshot(table_url)
    loopback.files |= {f"/{file.path}": Path(file.url).read_bytes() for file in local.data_files}
    files = (replace(file, url=f"{loopback.url}/{file.path}") for file in local.data_files)
    files = (file if has_crc32 else replace(file, crc32=None) for file in files)
    return replace(local, url=loopback.url, version=None, data_files=FileList.of(files))


def middle_of(path: str, column: str, row_group: int) -> int:
    """A byte in the middle of a column chunk, which is one page of values beside its header and
    levels.
    """
    with OpenFile(Path(path)) as footer:
        place = footer.footer.file_schema.by_name[column][0]
        first, end = footer.footer.span(row_group, footer.footer.file_schema.roots[place].leaves[0])
    return (first + end) // 2


def flip(table_url: str, loopback: Any, column: str = "user", *, times: Any) -> Any:
    """A bit of a page of row group 1 of the second file comes changed so many times."""
    file = open_snapshot(table_url).data_files[1]
    loopback.flips[f"/{file.path}"] = middle_of(file.url, column, 1), times
    return file


def rows_of(table: Any, **options: Any) -> Any:
    """Row, user, tags and label of all rows, by row."""
    with FeatureLoader(
        table, slots=["row", "user", "tags"], labels=["click"], batch_size=64, **options
    ) as loader:
        found = [row for batch in loader for row in _rows(batch)]
        return sorted(found), loader.stats()


def _rows(batch: Any) -> Any:
    tags = batch["tags"]
    offsets, values = tags.offsets.tolist(), tags.values.tolist()
    lists = [tuple(values[first:end]) for first, end in pairwise(offsets)]
    return zip(
        batch["row"].tolist(),
        batch["user"].tolist(),
        lists,
        batch.labels["click"].tolist(),
        strict=True,
    )


def staging(mode: Any, tmp_path: Path) -> Any:
    return {"mode": mode, "directory": str(tmp_path / "cache")}


def named(file: Any, column: Any) -> str:
    return rf"^{file.path}: column '{column}': row group 1 cannot be read: .*(?i:checksum)"


@pytest.mark.parametrize("has_crc32", [True, False], ids=["in the commit", "unknown"])
@pytest.mark.parametrize("mode", STAGED)
def test_a_bit_that_changes_once_on_the_way_is_downloaded_again(
    table_url: str,
    loopback: Any,
    tmp_path: Path,
    mode: Any,
    has_crc32: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected, _ = rows_of(table_url)
    table = served(table_url, loopback, has_crc32=has_crc32)
    file = flip(table_url, loopback, times=1)
    found, stats = rows_of(table, staging=staging(mode, tmp_path))
    assert loopback.num_flips == 1
    assert found == expected
    assert (stats["staging_num_retries"], stats["staging_num_staged"]) == (1, 2)
    assert [
        f"{loopback.url}/{file.path}: " in record.getMessage() for record in caplog.records
    ] == [True]


@pytest.mark.parametrize("column", ["user", "tags", "click"])
@pytest.mark.parametrize("mode", STAGED)
def test_a_bit_that_changes_each_time_is_an_error_and_the_next_run_asks_again(
    table_url: str, loopback: Any, tmp_path: Path, mode: Any, column: str
) -> None:
    table = served(table_url, loopback)
    file = flip(table_url, loopback, column, times=99)
    with pytest.raises(DataFileError, match=named(file, column)):
        rows_of(table, staging=staging(mode, tmp_path))
    assert loopback.num_flips >= 3
    loopback.flips.clear()
    found, stats = rows_of(table, staging=staging(mode, tmp_path))
    assert found == rows_of(table_url)[0]
    assert stats["staging_num_staged"] + stats["staging_num_hits"] == 2
    assert stats["staging_num_staged"] >= 1


@pytest.mark.parametrize("mode", STAGED)
def test_a_file_that_comes_changed_each_time_is_skipped_where_the_loader_is_told_to(
    table_url: str, loopback: Any, tmp_path: Path, mode: Any
) -> None:
    table = served(table_url, loopback)
    flip(table_url, loopback, times=99)
    found, stats = rows_of(table, on_bad_file="skip", staging=staging(mode, tmp_path))
    expected, _ = rows_of(table_url)
    left_out = range(FILE_ROWS + GROUP_ROWS, NUM_ROWS)
    assert found == [row for row in expected if row[0] not in left_out]
    assert (stats["files_skipped"], stats["rows_skipped"]) == (1, len(left_out))
    assert loopback.num_flips > 0


def test_a_second_epoch_does_not_download_a_damaged_file_again(
    table_url: str, loopback: Any, tmp_path: Path
) -> None:
    table = served(table_url, loopback)
    file = flip(table_url, loopback, times=99)
    _, stats = rows_of(table, on_bad_file="skip", num_epochs=3, staging=staging("whole", tmp_path))
    assert stats["files_skipped"] == 3
    whole = [
        span
        for method, path, span in loopback.log
        if (method, path) == ("GET", f"/{file.path}") and span is None
    ]
    assert len(whole) == 2


@pytest.mark.parametrize("has_crc32", [True, False], ids=["in the commit", "unknown"])
@pytest.mark.parametrize("mode", STAGED)
def test_the_cache_knows_what_was_checked(
    table_url: str, loopback: Any, tmp_path: Path, mode: Any, has_crc32: bool
) -> None:
    table = served(table_url, loopback, has_crc32=has_crc32)
    selection = resolve(table.schema, slots=["user"]).selection
    for num_hits in (0, 1):
        with Stager(Staging(**staging(mode, tmp_path)), staging_source(selection)) as stager:
            assert next(stager.stage(stage_items(table.data_files[0], 0))).is_checked
            assert stager.stats().num_hits == num_hits


def windows_of(reader: SplitReader) -> Iterator[Any]:
    """All windows of a split, in however many row groups are read together."""
    while not reader.is_finished:
        yield from reader.read()


def test_what_was_checked_is_not_checked_again(table_url: str, tmp_path: Path) -> None:
    _, file = damaged_copy(table_url, tmp_path, "user")
    request = resolve(open_snapshot(table_url).schema, slots=["user"])
    claim = Claim(
        index=0, split=Split(path=file.path, num_rows=file.num_rows), fence=1, start_row=0
    )
    work = Work(
        claim=claim,
        partition=Partition(values={}, is_decided=True),
        files=(FileSource(path=file.path, source=Path(file.url), is_checked=True),),
    )
    order = RowOrder(seed=0, epoch=0, shuffle=None)
    reader = SplitReader(work, request=request, order=order, stats=Stats())
    assert sum(window.rows.num_rows for window in windows_of(reader)) == FILE_ROWS
    reader.close()
    reader = SplitReader(
        replace(work, files=files_in_place(file)), request=request, order=order, stats=Stats()
    )
    with pytest.raises(DataFileError, match=named(file, "user")):
        list(windows_of(reader))
    reader.close()


def test_a_footer_that_changes_once_on_the_way_is_downloaded_again(
    table_url: str, loopback: Any, tmp_path: Path
) -> None:
    table = served(table_url, loopback)
    file = open_snapshot(table_url).data_files[1]
    footer_bytes = int.from_bytes(Path(file.url).read_bytes()[-8:-4], "little")
    loopback.flips[f"/{file.path}"] = file.size_bytes - 8 - footer_bytes, 1
    found, _ = rows_of(table, staging=staging("whole", tmp_path))
    assert (loopback.num_flips, found) == (1, rows_of(table_url)[0])


@pytest.mark.parametrize("column", ["user", "tags", "click"])
def test_a_bit_that_changed_on_the_disk_is_an_error(
    table_url: str, tmp_path: Path, column: str
) -> None:
    table, file = damaged_copy(table_url, tmp_path, column)
    with pytest.raises(DataFileError, match=named(file, column)):
        rows_of(table)


def damaged_copy(table_url: str, tmp_path: Path, column: Any) -> Any:
    local = open_snapshot(table_url)
    files = []
    for number, file in enumerate(local.data_files):
        data = bytearray(Path(file.url).read_bytes())
        data[middle_of(file.url, column, 1)] ^= 16 * number
        (tmp_path / f"{number}.parquet").write_bytes(data)
        files.append(replace(file, url=str(tmp_path / f"{number}.parquet")))
    return replace(local, version=None, data_files=FileList.of(files)), files[1]


def test_a_table_that_is_read_as_arrow_is_downloaded_again_too(
    table_url: str, loopback: Any
) -> None:
    flip(table_url, loopback, times=1)
    table = Table(served(table_url, loopback))
    assert table.to_arrow(["user"]).equals(open_table(table_url).to_arrow(["user"]))
    assert loopback.num_flips == 1
