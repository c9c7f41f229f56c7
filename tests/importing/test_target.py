"""The directory of an import: one writer, and nothing published over something else."""

import fcntl
from pathlib import Path

import pytest

from featstore.errors import InputError
from featstore.files.private_directory import try_lock, unlock
from featstore.importing.conversion import ConvertedFile
from featstore.importing.target import ImportTarget

DONE = ConvertedFile(
    num_rows=1, size_bytes=2, num_malformed=1, examples=("x",), unknown={"a": 1}, num_replaced=0
)


def test_another_process_that_writes_the_same_is_told(tmp_path: Path) -> None:
    target = ImportTarget(tmp_path / "raw", {"a": 1})
    hidden = Path(target.path("x")).parent
    hidden.mkdir()
    (hidden / "_lock").touch()
    lock = try_lock(hidden / "_lock", fcntl.LOCK_EX)
    assert lock is not None
    with pytest.raises(InputError, match="raw: an equal import is writing it"), target.writing():
        raise AssertionError
    unlock(lock)
    with target.writing():
        pass


def test_finished_parts_are_found_by_an_equal_import_only(tmp_path: Path) -> None:
    first, other = (ImportTarget(tmp_path / "raw", {"a": a}) for a in (1, 2))
    with first.writing():
        first.finish(first.path("dt=1/part.parquet"), DONE)
    equal = ImportTarget(tmp_path / "raw", {"a": 1})
    assert equal.finished(equal.path("dt=1/part.parquet")) == DONE
    assert equal.finished(equal.path("part.parquet")) is None
    assert other.finished(other.path("dt=1/part.parquet")) is None


def test_nothing_is_published_over_what_came_meanwhile(tmp_path: Path) -> None:
    target = ImportTarget(tmp_path / "raw", {"a": 1})
    with target.writing():
        target.finish(target.path("part.parquet"), DONE)
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "mine").touch()
        with pytest.raises(InputError, match=r"raw: cannot be published .*not empty"):
            target.publish({})
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["mine"]


def test_what_a_killed_process_left_is_not_published(tmp_path: Path) -> None:
    target = ImportTarget(tmp_path / "raw", {"a": 1})
    with target.writing():
        Path(target.path(".part.parquet.1.partial")).touch()
        target.publish({"num_rows": 1})
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["_import.json"]
    assert target.earlier() == {"num_rows": 1}
