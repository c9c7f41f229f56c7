"""`staging: {decoded: true}`: from the second epoch on the same batches come from decoded columns,
and whatever is wrong with these, the loader goes on without them.
"""

import errno
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError, DataFileError, MissingValueError, StagingError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.stage import warm
from featstore.staging.options import Staging
from featstore.table.snapshot import Snapshot
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged
from tests.full_disk import fill
from tests.loader.batches.test_bad_files import WAYS, write
from tests.loader.conftest import ROWS_PER_FILE, rows_of, rows_table
from tests.loader.test_groups import url as _grouped_url  # noqa: F401  a fixture, under its name
from tests.parquet_files import put_parquet, put_row_files

MIXED = {"shuffle": {"window_rows": 40, "interleave": 3}}
OPTIONS: list[dict[str, Any]] = [
    {},
    MIXED,
    {"where": "row % 3 != 1 and dt != '2026-11-03'"},
    {"where": "row > 100 and tags is not null", **MIXED},
    {"labels": [{"name": "ripe", "null": "drop"}]},
    {"labels": [{"name": "ripe", "null": 7}], "extras": ["note", "dt", "ripe"], **MIXED},
    {"labels": ["click"], "negatives": {"rate": 0.5, "label": "click"}, **MIXED},
    {"labels": ["click"], "negatives": {"rate": 0.5, "label": "click", "column": "note"}},
    {"slots": ["row", {"name": "tags", "pad": 2}], "drop_last": True},
    {"memory_budget": 4000, **MIXED},
    {"memory_budget": 2000},
    {"order": "static", "num_epochs": 2},
    {"order": "rank", "num_epochs": 2},
    {"dispatch": {"split_rows": 32}, **MIXED},
    {"dispatch": {"split_rows": 32}, "where": "row % 3 != 1"},
]  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table as of `table_url`, whose files a test may take away."""
    first = 0
    for day, num_rows in enumerate(ROWS_PER_FILE):
        path = tmp_path / "table" / f"dt=2026-11-0{day + 1}" / "part.parquet"
        put_parquet(path, rows_table(first, num_rows), row_group_size=16)
        first += num_rows
    return str(tmp_path / "table")


@pytest.fixture
def staging(tmp_path: Path) -> dict[str, Any]:
    return {"directory": str(tmp_path / "cache"), "decoded": True}


def make(table: str | Snapshot, **options: Any) -> FeatureLoader:
    known: dict[str, Any] = {"slots": ["*"], "batch_size": 23, "seed": 9}
    return FeatureLoader(table, **known | options)


def content(batches: Iterable[Batch]) -> list[Any]:
    """All bits of all batches."""
    return [
        (
            [(key, _bits(column)) for key, column in batch.made().items()],
            batch.extras.to_pylist(),
            batch.num_rows,
        )
        for batch in batches
    ]


def _bits(column: Any) -> Any:
    if isinstance(column, Jagged):
        return _bits(column.values), _bits(column.offsets)
    return str(column.dtype), tuple(column.shape), np.asarray(column).tobytes()


def files_of(table: str) -> list[Path]:
    return sorted(Path(table).rglob("*.parquet"))


def take_away(table: str) -> None:
    """From now on what is read comes from elsewhere."""
    for path in files_of(table):
        path.unlink()


def entries(staging: dict[str, Any]) -> list[Path]:
    return sorted(Path(staging["directory"]).rglob("*.staged"))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_epochs_are_those_of_a_loader_without_the_option(
    table: str, staging: dict[str, Any], options: dict[str, Any]
) -> None:
    with make(table, **options) as plain, make(table, staging=staging, **options) as decoded:
        for _ in range(2):
            assert content(decoded) == content(plain)
            assert len(entries(staging)) >= 3
            assert decoded.state_dict() == plain.state_dict()
        expected = content(plain)
        take_away(table)
        assert content(decoded) == expected


@pytest.mark.parametrize("order", ["static", "dynamic"])
def test_a_file_is_decoded_while_rows_of_one_before_it_wait_for_their_batch(
    tmp_path: Path, staging: dict[str, Any], order: str
) -> None:
    url = str(put_row_files(tmp_path / "small", [50, 1_000], row_group_size=1_000))
    with FeatureLoader(
        url, slots=["row"], batch_size=5_000, order=order, memory_budget=16_000, staging=staging
    ) as loader:
        assert sorted(rows_of(loader)) == list(range(1_050))


@pytest.mark.parametrize(
    "options", [{}, MIXED, {"where": "row % 3 != 1", **MIXED}, {"order": "static"}], ids=str
)
def test_a_resume_within_an_epoch_goes_on_from_decoded_columns(
    table: str, staging: dict[str, Any], options: dict[str, Any]
) -> None:
    with make(table, **options) as plain:
        expected = content(plain)
    with make(table, staging=staging, **options) as first:
        assert content(first) == expected
    for number in range(0, len(expected), 3):
        with make(table, staging=staging, **options) as stopped:
            batches = iter(stopped)
            before = content(next(batches) for _ in range(number + 1))
            stopped.ack()
            state = json.loads(json.dumps(stopped.state_dict()))
        with make(table, staging=staging, **options) as resumed:
            resumed.load_state_dict(state)
            Path(table).rename(f"{table} elsewhere")
            after = content(resumed)
            Path(f"{table} elsewhere").rename(table)
        assert before + after == expected


def test_another_job_finds_the_decoded_columns(table: str, staging: dict[str, Any]) -> None:
    with make(table, staging=staging) as first:
        expected = content(first)
    other = make(table, staging=staging, **MIXED)
    take_away(table)
    with other:
        assert sorted(rows_of(other)) == list(range(sum(ROWS_PER_FILE)))
    assert expected


def test_jobs_of_other_columns_do_not_read_them(table: str, staging: dict[str, Any]) -> None:
    with make(table, staging=staging, slots=["row"]) as narrow:
        rows_of(narrow)
    num_before = len(entries(staging))
    with make(table, staging=staging) as wide, make(table) as plain:
        assert content(wide) == content(plain)
    assert len(entries(staging)) == 2 * num_before


def test_a_file_that_was_replaced_is_decoded_anew(table: str, staging: dict[str, Any]) -> None:
    with make(table, staging=staging) as loader:
        rows_of(loader)
    put_parquet(files_of(table)[0], rows_table(1000, 70), row_group_size=16)
    # In order `dynamic` files come first whose decoded columns are there.
    order = {"order": "static"}
    with make(table, staging=staging, **order) as decoded, make(table, **order) as plain:
        assert content(decoded) == content(plain)


@pytest.mark.parametrize("mode", ["whole", "ranges"])
def test_files_with_decoded_columns_are_not_staged(
    table: str, staging: dict[str, Any], mode: str
) -> None:
    with make(table) as plain:
        expected = content(plain)
    with make(table, staging=staging | {"mode": mode}) as loader:
        assert content(loader) == expected
        num_staged = loader.stats()["staging_num_staged"]
        assert num_staged == 5
        assert content(loader) == expected
        assert loader.stats()["staging_num_staged"] == num_staged
        assert loader.stats()["staging_num_hits"] == 0


def test_slot_groups_are_decoded_with_their_file(
    request: pytest.FixtureRequest, staging: dict[str, Any]
) -> None:
    url = request.getfixturevalue("_grouped_url")
    options: dict[str, Any] = {"labels": ["click"], "extras": ["request"]}
    with make(url, **options) as plain, make(url, staging=staging, **options) as decoded:
        for _ in range(2):
            assert content(decoded) == content(plain)
        assert len(entries(staging)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader_share_them(
    table: str, staging: dict[str, Any], method: str
) -> None:
    loader = make(table, staging=staging, **MIXED)
    batches: Any = DataLoader(
        loader,
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for _ in range(2):
        assert sorted(rows_of(batches)) == list(range(sum(ROWS_PER_FILE)))
    assert len(entries(staging)) == 5
    take_away(table)
    assert sorted(rows_of(batches)) == list(range(sum(ROWS_PER_FILE)))


@pytest.mark.slow
def test_workers_in_static_order_give_the_same_batches(table: str, staging: dict[str, Any]) -> None:
    def epochs(**options: Any) -> list[Any]:
        loader = make(table, order="static", **MIXED, **options)
        workers: Any = DataLoader(loader, batch_size=None, num_workers=2)
        return [content(workers) for _ in range(2)]

    assert epochs(staging=staging) == epochs()
    assert len(entries(staging)) == 4  # Nobody opens the file without rows.


def test_what_was_warmed_is_read_in_the_first_epoch(
    tmp_path: Path, table: str, staging: dict[str, Any]
) -> None:
    config: dict[str, Any] = {
        "slots": ["row", "tags"],
        "labels": ["click"],
        "negatives": {"label": "click", "rate": 0.5, "column": "note"},
        "where": "dt > '2026-11-01'",
    }
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps(config | {"table": table, "staging": staging}))
    with make(table, **config) as plain:
        expected = content(plain)
    assert "of decoded columns are in the cache" in str(warm(str(path)))
    assert len(entries(staging)) == warm(str(path)).num_files == 4
    loader = make(table, staging=staging, **config)
    take_away(table)
    with loader:
        assert content(loader) == expected


def test_without_a_directory_they_live_as_long_as_the_loader(table: str) -> None:
    with make(table, staging={"decoded": True}) as loader:
        expected = content(loader)
        take_away(table)
        assert content(loader) == expected


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2000)
        byte = file.read(1)
        file.seek(2000)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(b"x")])
def test_a_damaged_entry_is_made_again(
    table: str, staging: dict[str, Any], harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with make(table, staging=staging) as loader:
        expected = content(loader)
        harm(max(entries(staging), key=lambda path: path.stat().st_size))
        assert content(loader) == expected
        assert "removed from the cache" in caplog.text or "staged again" in caplog.text
        take_away(table)
        assert content(loader) == expected


def test_an_entry_that_is_damaged_while_it_is_read_is_an_error_and_made_again_by_the_next(
    tmp_path: Path, staging: dict[str, Any]
) -> None:
    path = tmp_path / "one" / "part.parquet"
    put_parquet(path, rows_table(0, 4000), row_group_size=16)
    options: dict[str, Any] = {"staging": staging, "memory_budget": 4000, "batch_size": 16}
    with make(str(path.parent), **options) as loader:
        batches = iter(loader)
        next(batches)
        flip(entries(staging)[0])
        with pytest.raises(StagingError, match="somebody wrote to the file"):
            rows_of(batches)
    with make(str(path.parent), **options) as again:
        assert rows_of(again) == list(range(4000))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "staging.decoded" in record.getMessage()
    ]


def test_entries_that_are_gone_are_warned_of_once_and_not_made_again(
    table: str, staging: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with make(table, staging=staging) as loader:
        expected = content(loader)
        shutil.rmtree(staging["directory"])
        for _ in range(2):
            assert content(loader) == expected
        [warning] = warnings_of(caplog)
        assert "are gone from" in warning
        assert "files are read without decoded columns" in warning
    with make(table, staging=staging) as after:
        assert content(after) == expected
    assert len(entries(staging)) == 5


@pytest.mark.parametrize("budget_bytes", [1000, 14_000])
def test_a_budget_that_is_too_small_is_warned_of_once(
    table: str,
    staging: dict[str, Any],
    budget_bytes: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with make(table) as plain:
        expected = content(plain)
    with make(table, staging=staging | {"budget_bytes": budget_bytes}) as loader:
        for _ in range(3):
            assert content(loader) == expected
    [warning] = warnings_of(caplog)
    assert "staging.budget_bytes" in warning


def test_a_disk_that_is_full_is_warned_of_once(
    table: str, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make(table) as plain:
        expected = content(plain)
    with make(table, staging={"directory": str(small_disk), "decoded": True}) as loader:
        batches = iter(loader)
        before = content([next(batches)])
        ballast = fill(small_disk)
        assert before + content(batches) == expected
        ballast.unlink()
        assert content(loader) == expected
    [warning] = warnings_of(caplog)
    assert "cannot be written" in warning or "no room" in warning


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("name", ["posix_fallocate", "writev"])
def test_an_entry_that_cannot_be_written_is_warned_of_once_whatever_the_error(
    table: str,
    staging: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    number: int,
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with make(table) as plain:
        expected = content(plain)
    monkeypatch.setattr(os, name, fails)
    with make(table, staging=staging) as loader:
        for _ in range(2):
            assert content(loader) == expected
    [warning] = warnings_of(caplog)
    assert f"cannot be written to {staging['directory']}" in warning
    assert os.strerror(number) in warning
    assert not list(Path(staging["directory"]).rglob("*.part"))


@pytest.mark.parametrize("harm", WAYS)
def test_a_bad_file_is_reported_after_the_rows_before_it(
    tmp_path: Path, staging: dict[str, Any], harm: Any
) -> None:
    (tmp_path / "table").mkdir()
    snapshot = write(tmp_path / "table")
    harm(tmp_path / "table" / "b.parquet")

    def read(**options: Any) -> tuple[list[int], str]:
        rows = list[int]()
        with make(snapshot, **options) as loader:
            batches = iter(loader)
            with pytest.raises(DataFileError) as raised:
                rows.extend(row for batch in batches for row in batch["row"].tolist())
        return rows, str(raised.value)

    assert read(staging=staging) == read()
    skipping: dict[str, Any] = {"on_bad_file": "skip"}
    with make(snapshot, **skipping) as plain:
        expected = content(plain)
    with make(snapshot, staging=staging, **skipping) as decoded:
        assert content(decoded) == expected


def test_a_null_label_is_the_error_that_it_is_without(table: str, staging: dict[str, Any]) -> None:
    def error(**options: Any) -> str:
        with (
            make(table, labels=["ripe"], **options) as loader,
            pytest.raises(MissingValueError, match="'ripe' is null") as raised,
        ):
            rows_of(loader)
        return str(raised.value)

    assert error(staging=staging) == error()


def test_a_loader_that_is_closed_while_it_decodes_leaves_nothing_open(
    tmp_path: Path, staging: dict[str, Any]
) -> None:
    path = tmp_path / "one" / "part.parquet"
    numbers = pa.table({"row": pa.array(range(200_000), pa.int64())})
    put_parquet(path, numbers, row_group_size=1000)
    loader = make(str(path.parent), staging=staging)
    batches = iter(loader)
    next(batches)
    loader.close()
    with make(str(path.parent), staging=staging) as again:
        assert rows_of(again) == list(range(200_000))
    assert not list(Path(staging["directory"]).rglob("*.part"))


@pytest.fixture(autouse=True)
def _warnings_seen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING):
        yield


def test_the_option_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match=r"staging\.decoded: expected true or false, found 'yes'"):
        Staging(decoded="yes")  # type: ignore[arg-type]
