"""The directory of an import: one writer, and nothing published over something else."""

import errno
import fcntl
from pathlib import Path
from typing import NoReturn

import pytest

from featstore.base.errors import InputError
from featstore.files.private_directory import try_lock, unlock
from featstore.ingest import import_target as target
from featstore.ingest.conversion import ConvertedFile
from featstore.ingest.import_target import ImportTarget

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


def unlistable(path: Path) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_an_output_that_cannot_be_seen_is_an_error_and_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = ImportTarget(tmp_path / "raw", {"a": 1})
    with published.writing():
        published.publish({"num_rows": 1})
    with monkeypatch.context() as blind:
        blind.setattr(target, "names_in", unlistable)
        with pytest.raises(PermissionError, match="raw"):
            published.earlier()
    with monkeypatch.context() as blind:
        blind.setattr(Path, "read_text", unlistable)
        with pytest.raises(PermissionError, match=r"raw/_import\.json"):
            published.earlier()
    assert published.earlier() == {"num_rows": 1}


def test_finished_files_are_kept_if_their_directory_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ImportTarget(tmp_path / "raw", {"a": 1})
    note = wanted.path("dt=1/part.parquet")
    with wanted.writing():
        wanted.finish(note, DONE)
    monkeypatch.setattr(target, "list_own", unlistable)
    with pytest.raises(ValueError, match="the disk is full") as raised, wanted.writing():
        raise ValueError("the disk is full")
    assert "The clean-up after it failed too: PermissionError" in raised.value.__notes__[0]
    monkeypatch.undo()
    assert wanted.finished(note) == DONE
    with wanted.writing():
        pass


def test_what_an_import_of_other_inputs_left_goes_when_the_output_is_published(
    tmp_path: Path,
) -> None:
    raw, elsewhere = tmp_path / "raw", tmp_path / "elsewhere"
    left = [ImportTarget(raw, {"a": 1}), ImportTarget(elsewhere, {"a": 3})]
    for unfinished in left:
        with unfinished.writing():
            unfinished.finish(unfinished.path("part.parquet"), DONE)
    wanted = ImportTarget(raw, {"a": 2})
    with wanted.writing():
        wanted.finish(wanted.path("part.parquet"), DONE)
        wanted.publish({})
    assert not Path(left[0].path("x")).parent.exists()
    assert Path(left[1].path("x")).parent.exists()
