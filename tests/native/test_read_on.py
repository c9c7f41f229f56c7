"""Reads that give fewer bytes than were asked for are read on."""

from pathlib import Path

import pytest

from featstore.native.footers import read_checked, read_on
from tests.parquet_files import put_parquet
from tests.short_reads import ShortFile

DATA = bytes(range(200))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(DATA)
    return tmp_path / "a"


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 200, 500])
def test_a_short_read_is_read_on_up_to_the_end_of_the_file(path: Path, num_bytes: int) -> None:
    with ShortFile(path) as file:
        assert read_on(file, num_bytes) == DATA[:num_bytes]
        assert file.num_short > 0 or num_bytes < 2


def test_a_footer_is_read_on(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    with ShortFile(path) as file:
        assert read_checked(file).num_rows == 3
        assert file.num_short
