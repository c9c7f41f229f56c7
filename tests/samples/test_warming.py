"""What is decoded before a run is found by it."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from featstore.base.errors import ConfigError
from featstore.loader.stage import list as listed
from featstore.samples.sample_dataset import SampleDataset, warm_decoded
from featstore.tools.cli import program
from tests.loader.conftest import NUM_ROWS


@pytest.fixture
def config(tmp_path: Path, table_url: str) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(
        f"table: {table_url}\nslots: [row, tags]\nlabels: [click]\nbatch_size: 16\n"
        f"staging: {{directory: {tmp_path / 'cache'}}}\n"
    )
    return path


def test_a_dataset_finds_what_was_decoded_before(
    config: Path, tmp_path: Path, table_url: str
) -> None:
    done = CliRunner().invoke(program.cli, ["stage", "warm", str(config), "--decoded"])
    assert done.exit_code == 0, done.output
    assert f"{NUM_ROWS} samples of 5 files: " in done.output
    directory = str(tmp_path / "cache")
    before = listed(directory)
    assert before.count("3 decoded columns of ") == 5
    options: dict[str, Any] = {"slots": ["tags", "row"], "labels": ["click"]}
    with SampleDataset(table_url, **options, staging={"directory": directory}) as dataset:
        assert dataset[7]["row"].tolist() == [7]
    assert listed(directory).count("decoded columns of") == 5


def test_another_table_can_be_decoded(config: Path, table_url: str) -> None:
    report = warm_decoded(str(config), table=f"{table_url}/dt=2026-11-01")
    assert (report.num_samples, report.num_files) == (70, 1)
    assert 70 * 16 < report.size_bytes < 20_000


def test_a_config_without_a_directory_cannot_be_warmed(tmp_path: Path, table_url: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"table: {table_url}\nslots: [row]\n")
    with pytest.raises(ConfigError, match=r"staging.directory: expected the cache to fill"):
        warm_decoded(str(path))


def test_tables_of_a_mixture_are_decoded_one_by_one(tmp_path: Path, table_url: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"tables: [{{table: {table_url}}}]\nslots: [row]\n")
    with pytest.raises(ConfigError, match=r"tables: expected `table`.*found `tables`: warm each"):
        warm_decoded(str(path))
