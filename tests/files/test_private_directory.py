"""Temporary directories are removed by their owner, or by the next one."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import StagingError
from featstore.files.private_directory import PrivateDirectory, make_private
from tests.interposed import preceded
from tests.programs import run_python

LOADER = """
import os, signal, sys
from featstore.loader.feature_loader import FeatureLoader
loader = FeatureLoader(sys.argv[1], slots=["user"], batch_size=4, staging={"mode": "whole"})
next(iter(loader))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files, for this test only."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr("tempfile.tempdir", place)
        yield Path(place)


def test_a_private_directory_is_its_owners_alone_until_it_is_removed(temporary: Path) -> None:
    private = PrivateDirectory()
    assert private.path.stat().st_mode & 0o777 == 0o700
    private.remove()
    private.remove()
    assert list(temporary.iterdir()) == []


def test_a_directory_whose_owner_is_alive_is_left_alone(temporary: Path) -> None:
    first, second = PrivateDirectory(), PrivateDirectory()
    assert {first.path, second.path} == set(temporary.iterdir())
    first.remove()
    second.remove()


def test_a_forked_copy_removes_nothing(temporary: Path) -> None:
    private = PrivateDirectory()
    child = os.fork()
    if child == 0:
        private.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert private.path.exists()
    private.remove()


def test_the_directory_of_a_killed_loader_is_removed_by_the_next_one(
    tmp_path: Path, temporary: Path
) -> None:
    pq.write_table(pa.table({"user": pa.array(range(100), pa.int64())}), tmp_path / "a.parquet")
    variables = {"TMPDIR": str(temporary)}
    run_python(LOADER, tmp_path / "a.parquet", variables=variables, status=-signal.SIGKILL)
    assert (
        len(list(temporary.glob("featstore-private-*"))) == 2
    )  # of its workers' store, and of its staged files
    PrivateDirectory().remove()
    assert list(temporary.glob("featstore-*")) == []


def _alive_is(kind: str, directory: Path, elsewhere: Path) -> None:
    alive = directory / "alive"
    if kind == "directory":
        alive.mkdir()
    elif kind == "pipe":
        os.mkfifo(alive)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(alive))
    else:
        alive.symlink_to(
            {
                "link to a file": elsewhere,
                "link to a directory": elsewhere.parent,
                "link to nothing": Path("nothing"),
            }[kind]
        )


KINDS = ["directory", "pipe", "socket", "link to a file", "link to a directory", "link to nothing"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_file_in_place_of_a_lock_is_left_alone(
    temporary: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "elsewhere").touch()
    directory = temporary / "featstore-private-x"
    directory.mkdir(mode=0o700)
    _alive_is(kind, directory, tmp_path / "elsewhere")
    private = PrivateDirectory()
    assert directory.exists()
    assert (tmp_path / "elsewhere").exists()
    private.remove()


def test_a_link_in_the_place_of_a_directory_is_not_followed(
    temporary: Path, tmp_path: Path
) -> None:
    (tmp_path / "alive").touch()
    (temporary / "featstore-private-x").symlink_to(tmp_path)
    (temporary / "featstore-private-y").touch()
    PrivateDirectory().remove()
    assert (tmp_path / "alive").exists()
    assert len(list(temporary.iterdir())) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [0o700, 0o000, 0o777])
def test_directories_of_other_users_are_left_alone(temporary: Path, mode: int) -> None:
    """Root could remove them. Another user cannot even list some."""
    theirs = temporary / "featstore-private-theirs"
    theirs.mkdir()
    (theirs / "alive").touch()
    os.chown(theirs, 65534, 65534)
    theirs.chmod(mode)
    PrivateDirectory().remove()
    assert (theirs / "alive").exists()
    temporary.chmod(0o1777)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(Exception):
            os.setuid(65533)
            PrivateDirectory().remove()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert (theirs / "alive").exists()


class Removed(type(Path())):  # type: ignore[misc]
    """A path whose directory disappears the first `num_times` that it is inspected."""

    num_times = 0

    def lstat(self) -> os.stat_result:
        if self.num_times:
            self.num_times -= 1
            shutil.rmtree(self.parent)
        found: os.stat_result = super().lstat()
        return found


def test_a_directory_that_is_removed_while_it_is_made_is_made_again(tmp_path: Path) -> None:
    root = Removed(tmp_path / "cache" / "root")
    root.num_times = 3
    make_private(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a_directory_that_keeps_being_removed_is_an_error_that_names_it(tmp_path: Path) -> None:
    root = Removed(tmp_path / "cache" / "root")
    root.num_times = 1000
    with pytest.raises(
        StagingError, match=f"^staging.directory {tmp_path}/cache cannot hold the cache root: "
    ):
        make_private(root)


def test_a_directory_that_is_removed_before_it_is_looked_at_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, removals = tmp_path / "cache" / "private", list[bool]()

    def remove_once() -> None:
        if not removals:
            removals.append(True)
            root.rmdir()

    monkeypatch.setattr(os, "access", preceded(os.access, remove_once))
    make_private(root)
    assert removals
    assert root.is_dir()
