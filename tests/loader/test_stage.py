"""`featstore stage`: fill, look into and empty a cache, over a table on a real server."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake.transaction import AddAction, create_table_with_add_actions

from featstore.base.errors import ConfigError, StagingError
from featstore.loader import stage
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.open import open_snapshot
from featstore.table.snapshot import FileList
from featstore.tools import cli
from tests.parquet_files import put_parquet


@pytest.fixture
def table(tmp_path: Path) -> str:
    for day in (1, 2):
        put_parquet(
            tmp_path / "t" / f"dt={day}" / "a.parquet",
            {name: pa.array(range(5000), pa.int64()) for name in ("user", "item", "other")},
        )
    return str(tmp_path / "t")


@pytest.fixture
def config(tmp_path: Path, table: str) -> str:
    cache = tmp_path / "cache"
    text = f"""
table: {table}
slots: [user]
where: "dt = '1'"
staging: {{directory: {cache}, mode: ranges}}
"""
    (tmp_path / "train.yaml").write_text(text)
    return str(tmp_path / "train.yaml")


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.cli, ["stage", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_what_was_warmed_is_listed_read_without_a_download_and_cleared(
    tmp_path: Path, config: str
) -> None:
    assert _run("warm", config).startswith(
        "1 files: 1 staged (1 of them by ranges), 0 were there, 0 left to be read in place"
    )
    assert _run("warm", config).startswith("1 files: 0 staged (0 of them by ranges), 1 were there")
    listed = _run("list", str(tmp_path / "cache"))
    assert f"{tmp_path}/t/dt=1/a.parquet" in listed
    assert "1 files, " in listed
    with FeatureLoader.from_config(config) as loader:
        assert sum(batch.num_rows for batch in loader) == 5000
        assert loader.stats()["staging_fetched_bytes"] == 0
    assert _run("clear", str(tmp_path / "cache")).startswith("1 files removed, ")
    assert _run("list", str(tmp_path / "cache")).strip() == "0 files, 0 bytes"


def test_another_table_than_the_config_names_can_be_warmed(
    tmp_path: Path, config: str, table: str
) -> None:
    assert stage.warm(config, table=f"{table}/dt=*").num_files == 1


def test_the_files_of_all_tables_of_a_mixture_are_warmed(tmp_path: Path, table: str) -> None:
    put_parquet(tmp_path / "other" / "a.parquet", {"user": pa.array(range(100), pa.int64())})
    url, cache = tmp_path / "mixed.yaml", tmp_path / "cache"
    url.write_text(f"""
tables: [{{table: {table}, where: "dt = '1'"}}, {{table: {tmp_path}/other}}]
slots: [user]
staging: {{directory: {cache}, mode: whole}}
""")
    assert _run("warm", str(url)).startswith("2 files: 2 staged (0 of them by ranges), 0 were")
    listed = _run("list", str(cache))
    assert f"{tmp_path}/t/dt=1/a.parquet" in listed
    assert f"{tmp_path}/other/a.parquet" in listed
    with FeatureLoader.from_config(str(url), stop="all_exhausted") as loader:
        assert sum(batch.num_rows for batch in loader) >= 5100
        assert loader.stats()["staging_fetched_bytes"] == 0


def test_a_file_that_is_gone_is_no_success(tmp_path: Path) -> None:
    delta, config = tmp_path / "delta", tmp_path / "gone.yaml"
    for first in (0, 10):
        rows = pa.table({"user": pa.array(range(first, first + 10), pa.int64())})
        deltalake.write_deltalake(str(delta), rows, mode="append")
    gone = next(delta.glob("*.parquet"))
    gone.unlink()
    staging = f"{{directory: {tmp_path / 'cache'}, mode: whole}}"
    config.write_text(f"table: {delta}\nslots: [user]\nstaging: {staging}\n")
    with pytest.raises(StagingError, match=rf"1 files cannot be staged.*{gone.name} first"):
        stage.warm(str(config))


def test_a_config_without_a_directory_cannot_be_warmed(tmp_path: Path, table: str) -> None:
    (tmp_path / "train.yaml").write_text(f"table: {table}\nslots: [user]\n")
    with pytest.raises(
        ConfigError, match=r"staging\.directory: expected the cache to fill, found none"
    ):
        stage.warm(str(tmp_path / "train.yaml"))


@pytest.mark.parametrize("act", [stage.list, stage.clear])
def test_a_directory_without_a_cache_is_no_cache_and_stays_as_it_is(
    tmp_path: Path, act: object
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"expected a directory that was a staging\.directory, found no cache in it",
    ):
        act(str(tmp_path))  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


def test_a_remote_table_is_warmed_for_a_loader(tmp_path: Path, table: str, loopback: Any) -> None:
    local = open_snapshot(table)
    for file in local.data_files:
        loopback.files[f"/{file.path}"] = Path(file.url).read_bytes()
    remote = replace(
        local,
        data_files=FileList.of(
            replace(f, url=f"{loopback.url}/{f.path}") for f in local.data_files
        ),
    )
    options = {"directory": str(tmp_path / "cache")}
    for fetched in (True, False):
        with FeatureLoader(remote, slots=["user"], staging=options) as loader:
            assert sum(batch.num_rows for batch in loader) == 10_000
            assert (loader.stats()["staging_fetched_bytes"] > 0) == fetched
    assert loopback.url in stage.list(str(tmp_path / "cache"))


def _put(path: Path, values: list[int], modified_s: int) -> None:
    """A file of a size that does not depend on the values' order."""
    put_parquet(
        path, {"user": pa.array(values, pa.int64())}, compression="none", use_dictionary=False
    )
    os.utime(path, (modified_s, modified_s))


def _make_delta(directory: Path, values: list[int], modified_s: int) -> None:
    """A table by another writer, whose files have names that do not change."""
    shutil.rmtree(directory, ignore_errors=True)
    path = directory / "part-0.parquet"
    _put(path, values, modified_s)
    add = AddAction(
        path=path.name,
        size=path.stat().st_size,
        partition_values={},
        modification_time=modified_s * 1000,
        data_change=True,
        stats='{"numRecords": 3}',
    )
    schema = deltalake.Schema.from_arrow(pa.schema({"user": pa.int64()}))
    create_table_with_add_actions(str(directory), schema, [add], mode="error", partition_by=[])


def _make_plain(directory: Path, values: list[int], modified_s: int) -> None:
    _put(directory / "part-0.parquet", values, modified_s)


@pytest.mark.parametrize("make", [_make_delta, _make_plain], ids=["delta", "plain"])
def test_a_file_that_has_another_content_under_its_name_and_size_is_staged_anew(
    tmp_path: Path, make: Any
) -> None:
    staging = {"directory": str(tmp_path / "cache"), "mode": "whole"}
    found, sizes = [], set()
    for values, modified_s in (
        ([3, 1, 2], 1_700_000_000),
        ([3, 1, 2], 1_700_000_000),
        ([2, 3, 1], 1_700_000_001),
    ):
        make(tmp_path / "t", values, modified_s)
        sizes.add((tmp_path / "t" / "part-0.parquet").stat().st_size)
        with FeatureLoader(
            str(tmp_path / "t"), slots=["user"], batch_size=3, staging=staging
        ) as loader:
            rows = [batch["user"].tolist() for batch in loader]
            found.append((rows, loader.stats()["staging_num_hits"]))
    assert len(sizes) == 1
    assert found == [([[3, 1, 2]], 0), ([[3, 1, 2]], 1), ([[2, 3, 1]], 0)]
